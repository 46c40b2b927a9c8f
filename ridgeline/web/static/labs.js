// A lab's page: controls -> address -> API -> numbers, bars, notes, charts. It computes nothing of its own.
import { redraw, showCharts } from "./charts.js";
import { make } from "./make.js";

const WAIT_MS = 90; // after the last movement of a control
const MOST_HEADS = 8; // numbers shown large: the first that are not second readings of another
const lab = document.querySelector(".lab");
const id = (name) => document.getElementById(name);
const fields = new Map([...document.querySelectorAll(".field")].map((field) => [field.dataset.key, field]));
let asked = 0, timer = 0, flight = null, last = new Map(), moved = { key: "", at: 0 };

// ---- controls

const main = (field) => field.querySelector("[name]");
const slider = (field) => field.querySelector(".pair input[type=range]");
const stops = (range) => range.dataset.stops?.split(" ").map(Number);

function read(field) {
  if (field.dataset.kind === "toggle") return String(main(field).checked);
  return (field.querySelector("input[type=radio]:checked") ?? main(field)).value;
}

function write(field, value) {
  const radios = field.querySelectorAll("input[type=radio]");
  if (field.dataset.kind === "toggle") main(field).checked = ["true", "1", "on"].includes(value.toLowerCase());
  else if (radios.length) radios.forEach((radio) => { radio.checked = radio.value === value; });
  else main(field).value = value;
  follow(field);
}

/** The slider goes where its number field stands. */
function follow(field) {
  const range = slider(field);
  if (!range) return;
  const value = Number(main(field).value), places = stops(range);
  const near = (best, stop, place) => (Math.abs(stop - value) < Math.abs(places[best] - value) ? place : best);
  range.value = places ? places.reduce(near, 0) : value;
  range.setAttribute("aria-valuetext", `${main(field).value} ${field.querySelector(".unit")?.textContent ?? ""}`.trim());
}

/** The number field goes where its slider stands. */
function lead(field) {
  const range = slider(field), places = stops(range);
  main(field).value = places ? places[Number(range.value)] : range.value;
  follow(field);
}

function same(field) {
  const [value, normal] = [read(field), field.dataset.default];
  return field.dataset.kind === "number" && value !== "" ? Number(value) === Number(normal) : value === normal;
}

function query() {
  const changed = [...fields].filter(([, field]) => !same(field)).map(([key, field]) => [key, read(field)]);
  const text = new URLSearchParams(changed).toString();
  return text && `?${text}`;
}

// ---- the address

/** One entry of the history for each run of movements of one control. */
function remember(key) {
  const now = performance.now(), fresh = moved.key !== key || now - moved.at > 1500;
  moved = { key, at: now };
  if (query() === location.search) return;
  history[fresh ? "pushState" : "replaceState"](null, "", location.pathname + query());
}

function recall() {
  const given = new URLSearchParams(location.search);
  for (const [key, field] of fields) write(field, given.get(key) ?? field.dataset.default);
}

// ---- asking

function touched(key) {
  remember(key);
  id("results").setAttribute("aria-busy", "true");
  clearTimeout(timer);
  timer = setTimeout(() => ask(query()), WAIT_MS);
}

/** Asks for `search`; an answer that a newer question has overtaken is dropped. */
async function ask(search) {
  const mine = ++asked;
  flight?.abort();
  flight = new AbortController();
  id("results").setAttribute("aria-busy", "true");
  id("json").href = lab.dataset.api + search;
  try {
    const reply = await fetch(lab.dataset.api + search, { signal: flight.signal });
    const data = await reply.json();
    if (mine !== asked) return;
    if (reply.ok) show(data);
    showError(reply.ok ? null : data.error);
  } catch (error) {
    if (mine !== asked || error.name === "AbortError") return;
    showError({ param: null, message: `no answer from the ledger: ${error.message}` });
  }
  id("results").setAttribute("aria-busy", "false");
  lab.dataset.shown = search;
}

function showError(error) {
  const field = fields.get(error?.param);
  for (const other of [...document.querySelectorAll(".field > .error"), id("failure")]) other.hidden = true;
  for (const input of document.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  id("results").classList.toggle("stale", Boolean(error));
  if (!error) return;
  const place = field ? field.querySelector(".error") : id("failure");
  place.textContent = error.message;
  place.hidden = false;
  if (field) main(field).setAttribute("aria-invalid", "true");
}

// ---- showing

function show(data) {
  const twice = data.numbers.some((one) => one.reading === "nominal");
  const heads = data.numbers.filter((one) => !(twice && one.reading === "exact")).slice(0, MOST_HEADS);
  id("heads").replaceChildren(...heads.map((one) => make("li", {},
    make("span", { class: "label" }, one.label), make("b", { class: looks(one.value) }, ...parted(one.text)), make("small", {}, one.also))));
  id("notes").replaceChildren(...data.notes.map((note) => make("li", {}, note)));
  id("bars").replaceChildren(...data.bars.map(bar));
  id("numbers").tBodies[0].replaceChildren(...data.numbers.map(row));
  showCharts(id("charts"), data.charts, data.lab);
  showPlace(data);
  say(data.numbers);
}

const looks = (value) => (value === false ? "bad" : typeof value === "string" ? "word" : "");

/** A text's figure, and its unit in smaller type. */
function parted(text) {
  const gap = text.indexOf(" ");
  return gap < 0 || Number.isNaN(parseFloat(text)) ? [text] : [text.slice(0, gap), make("span", {}, text.slice(gap))];
}

const tag = (one) => (one.reading ? [" ", make("i", { class: "tag" }, one.reading)] : []);

const typeset = (formula) => formula.replace(/(\d)e\+?(-?)0?(\d+)/g, "$1e$2$3").replaceAll(" * ", " · ").replace(/\^2(?!\d)/g, "²").replaceAll("<=", "≤").replaceAll(" - ", " − ");

function row(one) {
  const how = make("td", { class: "how" });
  if (one.formula) how.append(make("code", {}, typeset(one.formula)));
  if (one.inputs) how.append(make("code", { class: "inputs" }, typeset(one.inputs)));
  return make("tr", { "data-key": one.key }, make("th", { scope: "row" }, one.label, ...tag(one)),
    make("td", { class: "value" }, one.text, make("small", {}, one.also)), how);
}

function bar(data) {
  const width = (part) => `width:${100 * part.share}%`;
  const both = (part) => part.text + (part.also && ` (${part.also})`);
  const strip = make("div", { class: data.fits ? "strip" : "strip over", "aria-hidden": "true" },
    ...data.parts.map((part, place) => make("span", { class: `part p${place % 8}`, style: width(part), title: `${part.label}: ${both(part)}` })));
  if (!data.fits) strip.append(make("span", { class: "limit", style: `left:${100 * data.total.share}%` }));
  const legend = data.parts.map((part, place) => make("li", {},
    make("i", { class: `key p${place % 8}`, "aria-hidden": "true" }), make("span", {}, part.label), make("b", {}, part.text), make("small", {}, part.also)));
  legend.push(make("li", { class: data.fits ? "" : "bad" }, make("i", { class: "key rest", "aria-hidden": "true" }),
    make("span", {}, data.rest.label), make("b", {}, data.rest.text), make("small", {}, data.rest.also)));
  const total = `${data.used.text} of ${both(data.total)} · ${data.percent}`;
  return make("figure", { class: "bar" }, make("figcaption", {}, make("h3", {}, data.title), make("span", {}, total)), strip,
    make("ul", { class: "legend" }, ...legend));
}

function showPlace(data) {
  const steps = fields.get("step");
  if (!steps) return;
  const low = Number(steps.dataset.low), at = Number(main(steps).value) - low;
  main(steps).max = low + data.num_steps - 1;
  id("place").textContent = `Step ${at + 1} of ${data.num_steps}`;
  main(steps).setAttribute("aria-valuetext", id("place").textContent);
  id("back").disabled = at <= 0;
  id("next").disabled = at >= data.num_steps - 1;
}

/** Tells those who listen what has changed, and nothing at the first look. */
function say(numbers) {
  const now = new Map(numbers.map((one) => [one.label + one.reading, one.text]));
  const news = numbers.filter((one) => last.size && last.get(one.label + one.reading) !== one.text);
  if (news.length) id("said").textContent = news.slice(0, 6).map((one) => `${one.label} ${one.reading} ${one.text}`).join("; ");
  last = now;
}

// ---- wiring

for (const [key, field] of fields) {
  field.addEventListener("input", (event) => {
    if (event.target === slider(field)) lead(field); else follow(field);
    touched(key);
  });
}

function move(by) {
  const steps = main(fields.get("step"));
  const to = Math.min(Math.max(Number(steps.value) + by, Number(steps.min)), Number(steps.max));
  if (to === Number(steps.value)) return;
  steps.value = to;
  touched("step");
}

if (fields.has("step")) {
  id("back").addEventListener("click", () => move(-1));
  id("next").addEventListener("click", () => move(1));
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea, .scroll")) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) { event.preventDefault(); move(by); }
  });
}
id("controls").addEventListener("submit", (event) => event.preventDefault());
id("reset").addEventListener("click", () => {
  for (const field of fields.values()) write(field, field.dataset.default);
  touched("reset");
});
id("copy").addEventListener("click", async () => {
  let text = "Copied";
  try { await navigator.clipboard.writeText(location.href); } catch { text = "Copy the address bar"; }
  id("copy").textContent = text;
  setTimeout(() => { id("copy").textContent = "Copy link"; }, 1500);
});
id("jump").addEventListener("change", (event) => location.assign(event.target.value));
window.addEventListener("popstate", () => { moved = { key: "", at: 0 }; recall(); ask(location.search); });
window.addEventListener("themechange", redraw);
document.querySelector("script[src*=plotly]").addEventListener("load", redraw);
recall();
ask(location.search);
