// A simulation's report: the timeline of slots, and the labs' charts over the data in the page.
import { redraw, showCharts } from "./charts.js";
import { make } from "./make.js";

const KINDS = { prefill: "--series-7", decode: "--series-4", idle: "--bad" };
const report = JSON.parse(document.getElementById("data").textContent);
const lasts = Math.max(...report.timelines.map((one) => one.end_s));
const slots = report.timelines.map((run) => {
  const plot = make("div", { class: "plot", role: "img" });
  plot.ariaLabel = `${run.name}: what each slot does over time. ${run.said}.`;
  plot.style.height = `${64 + 18 * Math.max(run.lanes.length, 3)}px`;
  document.getElementById("timelines").append(
    make("figure", {}, make("figcaption", {}, make("h3", {}, run.name), make("span", {}, run.said)), plot));
  return [run, plot];
});

/** A bar of each kind for all its segments; all timelines share one length, so that they can be compared. */
function drawSlots([run, plot]) {
  const bars = Object.entries(KINDS).map(([kind, tone]) => {
    const found = run.lanes.flatMap((lane) => lane.segments.filter((one) => one[0] === kind).map((one) => [lane.name, ...one]));
    const pattern = { shape: kind === "idle" ? "/" : "", size: 5, solidity: 0.35, bgcolor: colour("--panel"), fgcolor: colour(tone), fillmode: "replace" };
    return {
      type: "bar", orientation: "h", name: kind, y: found.map((one) => one[0]), base: found.map((one) => one[2]),
      x: found.map((one) => one[3] - one[2]), customdata: found.map((one) => [one[4], one[2], one[3]]),
      marker: { color: colour(tone), line: { width: 0 }, ...(kind === "idle" ? { pattern } : {}) },
      hovertemplate: `request %{customdata[0]}, ${kind}: %{customdata[1]:.3~s}s to %{customdata[2]:.3~s}s<extra></extra>`,
    };
  });
  const soft = colour("--soft"), rule = colour("--rule");
  const axis = { color: soft, gridcolor: rule, linecolor: rule, zeroline: false, tickfont: { size: 11 }, fixedrange: true, automargin: true };
  window.Plotly.react(plot, bars, {
    barmode: "overlay", bargap: 0.15, showlegend: false, margin: { l: 30, r: 10, t: 6, b: 34 }, dragmode: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--ink") },
    paper_bgcolor: colour("--panel"), plot_bgcolor: colour("--panel"), hovermode: "closest",
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: rule, font: { color: colour("--ink") } },
    xaxis: { ...axis, range: [0, lasts], ticksuffix: "s", tickformat: "~s" },
    yaxis: { ...axis, showgrid: false, type: "category", categoryorder: "array", autorange: "reversed",
      categoryarray: run.lanes.map((lane) => lane.name), dtick: run.lanes.length > 16 ? 4 : 1 },
  }, { displayModeBar: false, responsive: true });
}

showCharts(document.getElementById("charts"), report.charts, "simulation");
slots.forEach(drawSlots);
window.addEventListener("themechange", () => { redraw(); slots.forEach(drawSlots); });
