// The live page: asks the server for its numbers every two seconds, and shows them. It computes no number.
import { redraw, showCharts } from "./charts.js";
import { make } from "./make.js";

const EVERY_MS = 2000;
const id = (name) => document.getElementById(name);
const root = id("results");
const REASONS = {
  step: ["the step in flight", "They came while a step ran, or between two: the next plan sees them."],
  rank: ["those before them", "Others are first in the queue; what those wait for stands in the other rows."],
  rows: ["a free row", "As many sequences run as may at a time: --max-num-seqs."],
  budget: ["tokens of a step", "Prompts and decodes spend what a step may hold: --max-num-batched-tokens."],
  pages: ["room in the KV cache", "What is known of them does not fit beside those that run: --kv-cache-bytes."],
  policy: ["the policy", "It starts no more for now, such as before a static batch has ended: --policy."],
  fork: ["their first choice's prompt", "The other choices of a request share it once it is computed."],
  preempted: ["their turn after a preemption", "They lost their pages to requests of a higher rank, and compute again."],
};
let paused = false, key = "", broken = null;
try { key = sessionStorage.getItem("key") ?? ""; } catch { /* no storage: asked for again */ }

// ---- numbers as text

const figures = (value) => (Math.abs(value) >= 999.5 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3))));
const percent = (share) => (share == null ? "–" : `${figures(share < 1e-6 ? 0 : 100 * share)}%`);
function seconds(value) {
  if (value == null) return "–";
  if (value >= 7200) return `${figures(value / 3600)} h`;
  if (value >= 120) return `${figures(value / 60)} min`;
  return value >= 1 || value === 0 ? `${figures(value)} s` : value >= 1e-3 ? `${figures(value * 1e3)} ms` : `${figures(value * 1e6)} µs`;
}
const target = (value) => (value == null ? "no target" : `target ${seconds(value)}`);

// ---- showing

function show(data) {
  id("about").textContent = `${data.model}, up for ${seconds(data.uptime_s)}. Numbers are of the last minute unless they say otherwise.`;
  heads(data).forEach(([label, text, also, bad], place) => {
    const head = id("heads").children[place] ?? id("heads").appendChild(
      make("li", {}, make("span", { class: "label" }, label), make("b"), make("small")));
    const gap = text.indexOf(" ");
    head.children[1].replaceChildren(...(gap < 0 ? [text] : [text.slice(0, gap), make("span", {}, text.slice(gap))]));
    head.children[1].className = bad ? "bad" : "";
    head.children[2].textContent = also;
  });
  id("bars").replaceChildren(...bars(data).filter(([, , parts]) => parts.some(([, value]) => value)).map(bar));
  id("numbers").tBodies[0].replaceChildren(...waits(data.waits ?? []));
  showCharts(id("charts"), charts(data), "live");
  root.dataset.shown = String(Number(root.dataset.shown) + 1);
}

function heads(data) {
  const { ttft, tpot } = data.latency, { ttft_s, tpot_s } = data.targets, step = data.device;
  const seen = data.prompt_tokens ? data.cached_tokens / data.prompt_tokens : null;
  const late = data.late ? `, ${data.late} were sure to be late` : "";
  const met = data.goodput.ended ? `${percent(data.goodput.good / data.goodput.ended)} of ${data.goodput.ended} that ended` : "none ended";
  return [
    ["Goodput", `${figures(data.goodput.minute)} requests/s`, `${met}${late}; ${figures(data.goodput.start)}/s since the start`],
    ["Time to first token, median", seconds(ttft.p50), `p99 ${seconds(ttft.p99)}, ${target(ttft_s)}`, ttft_s != null && ttft.p50 > ttft_s],
    ["Time per output token, median", seconds(tpot.p50), `p99 ${seconds(tpot.p99)}, ${target(tpot_s)}`, tpot_s != null && tpot.p50 > tpot_s],
    ["Running", `${data.running ?? 0}`, `${data.waiting ?? 0} waiting`],
    ["Output", `${figures(data.output_tok_s ?? 0)} tok/s`, `${data.wasted_tokens ?? 0} tokens wasted, ${data.preemptions ?? 0} preemptions`],
    ["Step, mean", seconds(step.step_mean_s), `floor ${seconds(step.step_floor_s)}${step.step_mean_s && step.step_floor_s ? `, ${percent(step.step_floor_s / step.step_mean_s)} of the time` : ""}`],
    ["Prompt tokens reused", percent(seen), `of ${figures(data.prompt_tokens ?? 0)}`],
    ["In the system, by Little's law", figures(data.little_law?.num_in_system ?? 0), `since the start; rate × time differs by ${percent(Math.abs(data.little_law?.difference ?? 0))}`],
  ];
}

/** [title, note, parts as [label, value], text of a value] of each strip. */
function bars(data) {
  const { prefill_share, decode_share, idle_share } = data.device, kv = data.kv ?? {};
  const parts = Object.entries(data.ttft_parts_s);
  const blocks = Object.values(kv).reduce((sum, count) => sum + count, 0);
  return [
    ["Device time", "by phase", [["prefill", prefill_share], ["decode", decode_share], ["idle", idle_share]], percent],
    ["KV cache", `${figures(blocks)} blocks`, ["used", "cached", "pending", "free"].map((state) => [state, kv[state] ?? 0]), figures],
    ["Time to first token", `mean ${seconds(parts.reduce((sum, [, value]) => sum + value, 0))}`, parts, seconds],
  ];
}

function bar([title, note, parts, text]) {
  const total = parts.reduce((sum, [, value]) => sum + Math.max(0, value ?? 0), 0) || 1;
  const look = (label, place) => (label === "idle" || label === "free" ? "rest" : `p${place}`);
  const strip = make("div", { class: "strip", "aria-hidden": "true" }, ...parts.filter(([label]) => look(label, 0) !== "rest").map(([label, value], place) =>
    make("span", { class: `part p${place}`, style: `width:${(100 * Math.max(0, value ?? 0)) / total}%`, title: `${label}: ${text(value)}` })));
  const legend = parts.map(([label, value], place) => make("li", {},
    make("i", { class: `key ${look(label, place)}`, "aria-hidden": "true" }), make("span", {}, label), make("b", {}, text(value))));
  return make("figure", { class: "bar" }, make("figcaption", {}, make("h3", {}, title), make("span", {}, note)), strip, make("ul", { class: "legend" }, ...legend));
}

function waits(rows) {
  const shown = rows.filter((row) => row.waited_s > 0 || row.waiting);
  if (!shown.length) return [make("tr", {}, make("td", { colspan: "3" }, "Nobody waited."))];
  return shown.map((row) => {
    const [name, means] = REASONS[row.reason] ?? [row.reason, ""];
    return make("tr", { "data-key": row.reason }, make("th", { scope: "row" }, name),
      make("td", { class: "value" }, seconds(row.waited_s), make("small", {}, `${row.waiting} wait now`)), make("td", { class: "how" }, means));
  });
}

function charts(data) {
  const { series, targets } = data;
  const chart = (name, title, y_label, curves, marks = []) => ({
    key: name, title, x_label: "from now, s", y_label, log_x: false, log_y: false, stacked: false, marks,
    series: curves.map(([label, curve]) => ({ name: label, kind: "line", x: series.at_s, y: series[curve] ?? [], upper: [] })),
  });
  const aim = (value) => (value == null ? [] : [{ x: null, y: value, label: "target" }]);
  return [
    chart("ttft", "Time to first token", "TTFT, s", [["median", "ttft_p50_s"], ["p99", "ttft_p99_s"]], aim(targets.ttft_s)),
    chart("tpot", "Time per output token", "TPOT, s", [["median", "tpot_p50_s"], ["p99", "tpot_p99_s"]], aim(targets.tpot_s)),
    chart("requests", "Running and waiting", "sequences", [["running", "num_running"], ["waiting", "num_waiting"]]),
    chart("step", "A step against its floor", "step, s", [["measured", "step_mean_s"], ["floor", "step_floor_s"]]),
    chart("phases", "Share of device time", "share", [["prefill", "prefill_share"], ["decode", "decode_share"]]),
    chart("kv", "KV cache by block state", "blocks", [["used", "kv_used"], ["cached", "kv_cached"], ["pending", "kv_pending"]]),
    chart("goodput", "Goodput, over a minute", "requests/s", [["within targets", "goodput"]]),
  ];
}

// ---- asking

/** What is wrong, or null; said once, when it changes. */
function tell(problem) {
  if (problem === broken) return;
  id("failure").hidden = problem === null;
  id("failure").textContent = problem ?? "";
  root.classList.toggle("stale", problem !== null);
  if (broken !== null && problem === null) id("said").textContent = "The numbers are live again.";
  broken = problem;
}

async function ask() {
  try {
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    const reply = await fetch(root.dataset.api, { headers, cache: "no-store" });
    const data = await reply.json();
    id("key").hidden = reply.status !== 401;
    if (reply.ok) show(data);
    tell(reply.ok ? null : reply.status === 401 && !key ? "This server asks for an API key." : data.error.message);
  } catch (error) {
    tell(`No answer from the server: ${error.message}. Asking again.`);
  }
}

async function forever() {
  if (!paused && !document.hidden) await ask();
  setTimeout(forever, EVERY_MS);
}

id("pause").addEventListener("click", () => {
  paused = !paused;
  id("pause").setAttribute("aria-pressed", String(paused));
  id("pause").textContent = paused ? "Go on" : "Pause";
  id("said").textContent = paused ? "Paused." : "Going on.";
});
id("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = id("secret").value.trim();
  try { sessionStorage.setItem("key", key); } catch { /* kept as long as the page */ }
  ask();
});
window.addEventListener("themechange", redraw);
document.querySelector("script[src*=plotly]").addEventListener("load", redraw);
forever();
