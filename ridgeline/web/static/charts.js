// Charts: a Chart of the API drawn by plotly.js, with its data as a table, as CSV and as PNG.
import { make } from "./make.js";

const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const HATCHES = ["", "", "", "/", "x", "-", ".", "+"]; // so that colour alone tells no bar apart
const SYMBOLS = ["circle", "diamond", "square", "triangle-up", "cross", "x"];
const drawn = new Map(); // figure element -> its chart, to draw again in other colours

const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) if (target.data && target.offsetWidth) window.Plotly.Plots.resize(target);
});

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const faint = (hex) => hex + "2e";

/** Shows charts in `holder`, in order; a chart that stays keeps its element and what is open in it. */
export function showCharts(holder, charts, lab) {
  const keys = new Set(charts.map((chart) => chart.key));
  for (const figure of [...holder.children]) {
    if (!keys.has(figure.dataset.key)) { drawn.delete(figure); window.Plotly?.purge(figure.querySelector(".plot")); figure.remove(); }
  }
  charts.forEach((chart, place) => {
    let figure = [...holder.children].find((child) => child.dataset.key === chart.key);
    if (!figure) figure = frame(chart.key, lab);
    if (holder.children[place] !== figure) holder.insertBefore(figure, holder.children[place] ?? null);
    drawn.set(figure, chart);
  });
  redraw(); // once all have their places, which say how wide they are
}

/** Draws what is shown once more: the colours changed, or the library has arrived. */
export function redraw() {
  for (const [figure, chart] of drawn) draw(figure, chart);
}

function frame(key, lab) {
  const figure = make("figure", { class: "chart" });
  figure.dataset.key = key;
  const button = (text, act) => {
    const made = make("button", { type: "button", class: "quiet" }, text);
    made.addEventListener("click", () => act(drawn.get(figure), `${lab}-${key}`));
    return made;
  };
  const details = make("details", {}, make("summary", {}, "Data table"), make("div", { class: "scroll", tabindex: "0" }));
  details.addEventListener("toggle", () => fillTable(figure));
  const plot = make("div", { class: "plot", role: "img" });
  widths.observe(plot);
  figure.append(
    make("figcaption", {}, make("h3"), make("span", { class: "exports" }, button("PNG", savePng), button("CSV", saveCsv))),
    make("ul", { class: "names", "aria-hidden": "true" }), plot, details);
  return figure;
}

function draw(figure, chart) {
  figure.querySelector("h3").textContent = chart.title;
  for (const button of figure.querySelectorAll("button")) button.ariaLabel = `${chart.title} as ${button.textContent}`;
  const plot = figure.querySelector(".plot");
  plot.ariaLabel = `${chart.title}. ${chart.y_label} against ${chart.x_label || "kind"}: ` +
    `${chart.series.map((one) => one.name).join(", ")}. The data table below has the values.`;
  figure.querySelector(".names").replaceChildren(...(chart.series.length > 1 ? chart.series.map(name) : []));
  fillTable(figure);
  if (window.Plotly) window.Plotly.react(plot, traces(chart), layout(chart), { displayModeBar: false });
}

const toneOf = (place) => `--series-${(place % 8) + 1}`;
const dashOf = (place) => Math.floor(place / 2) % DASHES.length;

/** A series' name with a stroke that looks as its curve does; the picture for export has the library's own. */
function name(one, place) {
  return make("li", {}, make("i", { class: `mark ${one.kind} d${dashOf(place)}${one.kind === "bar" && HATCHES[place % 8] ? " hatched" : ""}`, style: `color:var(${toneOf(place)})` }), one.name);
}

/** Bars with long names lie flat, so that the names can be read. */
const flat = (chart) => chart.series.some((one) => one.kind === "bar" && one.x.some((x) => String(x).length > 14));

function traces(chart) {
  const lies = flat(chart), unit = unitOf(chart.y_label);
  const format = `%{${lies ? "x" : "y"}:.4~${unit ? "s" : "g"}}${suffix(chart.y_label)}`;
  return chart.series.flatMap((one, place) => {
    const tone = colour(toneOf(place));
    const base = { name: one.name, x: one.x, y: one.y, hovertemplate: format, legendgroup: one.name };
    const line = { color: tone, width: 2, dash: DASHES[dashOf(place)] };
    if (one.kind === "bar") {
      const way = lies ? { orientation: "h", x: one.y, y: one.x } : {};
      const pattern = { shape: HATCHES[place % HATCHES.length], size: 6, solidity: 0.35, fillmode: "replace", bgcolor: tone, fgcolor: colour("--panel") };
      return [{ ...base, ...way, type: "bar", marker: { color: tone, pattern, line: { color: colour("--panel"), width: 1 } } }];
    }
    if (one.kind === "points") {
      return [{ ...base, mode: "markers", marker: { color: tone, size: 9, symbol: SYMBOLS[place % SYMBOLS.length] } }];
    }
    if (one.kind === "band") {
      const edge = { ...base, mode: "lines", line: { ...line, width: 0 }, hoverinfo: "skip", hovertemplate: undefined };
      return [{ ...edge, showlegend: false }, { ...edge, y: one.upper, fill: "tonexty", fillcolor: faint(tone) }];
    }
    return [{ ...base, mode: "lines", line: one.kind === "step" ? { ...line, shape: "hv" } : line }];
  });
}

function layout(chart) {
  const ink = colour("--ink"), soft = colour("--soft"), rule = colour("--rule");
  const of = (name) => chart.series.flatMap((one) => [...one[name], ...(name === "y" ? one.upper : [])]);
  const axis = (label, log, values, more) => ({
    title: { text: !log && label === unitOf(label) ? "" : label, font: { size: 12, color: soft }, standoff: 8 },
    color: soft, gridcolor: rule, linecolor: rule, zerolinecolor: rule, fixedrange: true, automargin: true,
    exponentformat: "SI", tickfont: { size: 11 }, nticks: 8, type: log ? "log" : undefined,
    ...(log ? decades(values) : suffixed(label)), ...more,
  });
  const words = typeof chart.series[0]?.x[0] === "string", bars = chart.series.some((one) => one.kind === "bar");
  const across = axis(chart.x_label, chart.log_x && !words, of("x"), words ? { type: "category", showgrid: false } : {});
  const up = axis(chart.y_label, chart.log_y, of("y"), chart.log_y ? {} : { rangemode: "tozero" });
  const lies = flat(chart);
  return {
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
    paper_bgcolor: colour("--panel"), plot_bgcolor: colour("--panel"), showlegend: false,
    margin: { l: 48, r: 12, t: 10, b: 40 }, dragmode: false, hovermode: words ? "closest" : "x unified",
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: rule, font: { color: ink } },
    barmode: chart.stacked ? "stack" : "group", bargap: bars ? Math.max(0.35, 1 - 0.2 * new Set(of("x")).size) : undefined,
    xaxis: lies ? up : across, yaxis: lies ? { ...across, title: { text: "" }, autorange: "reversed" } : up,
    ...(lies ? {} : marks(chart, soft)),
  };
}

/** The unit of a label that takes prefixes (5 ms for 0.005 s), or "". */
const unitOf = (label) => label.match(/(?:^|, )(s|FLOP|FLOP\/s|bytes|B|B\/s)$/)?.[1] ?? "";
const suffix = (label) => unitOf(label).replace("bytes", "B");
const suffixed = (label) => (unitOf(label) ? { tickformat: "~s", ticksuffix: suffix(label) } : {});

/** Ticks of a log axis: every 1, 2 and 5 while it spans few decades, else every 1. */
function decades(values) {
  const logs = values.filter((value) => value > 0).map(Math.log10);
  if (!logs.length) return {};
  const [low, high] = [Math.floor(Math.min(...logs)), Math.ceil(Math.max(...logs))];
  const within = high - low > 3 ? [1] : [1, 2, 5];
  const tickvals = [];
  for (let power = low; power <= high; power++) tickvals.push(...within.map((digit) => digit * 10 ** power));
  return { tickvals, tickformat: Math.max(...logs) < 4 && Math.min(...logs) >= 0 ? "~r" : "~s" };
}

function marks(chart, tone) {
  const shapes = [], annotations = [];
  const place = (value, log) => (log ? Math.log10(value) : value); // where a log axis counts in decades
  const text = (label, more) => annotations.push({
    text: label, showarrow: false, font: { size: 11, color: tone }, ...more });
  const line = { color: tone, width: 1, dash: "dot" };
  chart.marks.forEach((mark, number) => {
    const hasX = mark.x !== null, hasY = mark.y !== null;
    if (hasX && hasY) {
      text(mark.label, { x: place(mark.x, chart.log_x), y: place(mark.y, chart.log_y), showarrow: true, arrowcolor: tone, arrowsize: 0.8, ax: 24, ay: -24 });
    } else if (hasX) {
      shapes.push({ type: "line", x0: mark.x, x1: mark.x, y0: 0, y1: 1, yref: "paper", line });
      text(mark.label, { x: place(mark.x, chart.log_x), y: 0.99 - 0.085 * (number % 4), yref: "paper", yanchor: "top", xanchor: "left", xshift: 3 });
    } else {
      shapes.push({ type: "line", y0: mark.y, y1: mark.y, x0: 0, x1: 1, xref: "paper", line });
      text(mark.label, { y: place(mark.y, chart.log_y), x: 0.995, xref: "paper", xanchor: "right", yanchor: "bottom" });
    }
  });
  return { shapes, annotations };
}

function rows(chart) {
  const upper = chart.series.some((one) => one.upper.length);
  const head = ["series", chart.x_label || "kind", chart.y_label, ...(upper ? ["upper"] : [])];
  const body = chart.series.flatMap((one) =>
    one.x.map((x, place) => [one.name, x, one.y[place], ...(upper ? [one.upper[place] ?? ""] : [])]));
  return [head, ...body];
}

function fillTable(figure) {
  if (!figure.querySelector("details").open) return;
  const [head, ...body] = rows(drawn.get(figure));
  const shown = (value) => (typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 6 }) : value ?? "");
  const table = make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...body.map((row) => make("tr", {}, ...row.map((value) => make("td", {}, String(shown(value))))))));
  figure.querySelector(".scroll").replaceChildren(table);
}

function savePng(chart, name) {
  const title = { text: chart.title, font: { size: 16 }, x: 0.02, xanchor: "left" };
  const legend = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" };
  const shape = { ...layout(chart), title, legend, showlegend: chart.series.length > 1, margin: { l: 60, r: 24, t: 90, b: 52 } };
  window.Plotly.downloadImage({ data: traces(chart), layout: shape }, { format: "png", filename: name, width: 960, height: 540, scale: 2 });
}

function saveCsv(chart, name) {
  const quoted = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  const text = rows(chart).map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: `${name}.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
