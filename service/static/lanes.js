// How one chart looks: uPlot options of a lane, its title with the values under the cursor, its colours.
import { clock, shortTime } from "./times.js";

const LEFT = 56;
export const RIGHT = 60;

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const faded = (name, share) => `color-mix(in srgb, ${token(name)} ${share}%, transparent)`;

export function number(value) {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (size && size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  for (const [factor, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= factor * 0.9995) return `${Number((value / factor).toPrecision(3))}${prefix}`;
  }
  return `${Number(value.toPrecision(3))}`;
}

export const isShare = (key) => key.endsWith("accuracy") || key === "gpu_utilisation";
export const shown = (key, value) => {
  if (value == null) return "–";
  if (isShare(key)) return `${number(value * 100)} %`;
  if (key.endsWith("_bytes") || key.endsWith("_bytes_across")) return `${number(value)}B`;
  if (key.endsWith("_s") && key !== "samples_per_s") return value < 1 ? `${number(value * 1e3)} ms` : `${number(value)} s`;
  return number(value);
};

// A series: {key, word, colour, scale, dash, dots, steps}; `lane` is {name, title, series, tall, range, isLast}.
export function options(lane, view) {
  const grid = { stroke: token("line"), width: 1 };
  const axis = { stroke: token("soft"), font: "12px system-ui, sans-serif", grid, ticks: { show: false } };
  const bare = { show: false };
  const right = lane.series.find((s) => s.scale === "score");
  const left = lane.series.find((s) => s.scale !== "score") || lane.series[0];
  const axes = [
    { ...axis, grid: bare, size: lane.isLast ? 24 : 8, gap: 4, space: 72, values: (u, splits) => (lane.isLast ? splits.map((x) => xWord(x, u, view.axis)) : splits.map(() => "")) },
    { ...axis, size: LEFT, gap: 8, space: lane.space || 40, values: (u, ys) => ys.map((y) => shown(left.key, y)), ...(lane.incrs && { incrs: lane.incrs }) },
  ];
  if (right) axes.push({ ...axis, side: 1, scale: "score", size: RIGHT, gap: 8, grid: bare, values: (u, ys) => ys.map((y) => shown(right.key, y)) });
  return {
    width: view.width, height: lane.height, axes, legend: { show: false },
    padding: [8, right ? 0 : view.right, 0, 0],
    cursor: { sync: { key: "lanes", setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { size: 8 }, y: false },
    scales: { x: { time: false }, y: { range: lane.range }, score: { range: scoreRange } },
    series: [{}, ...lane.series.map(series)],
  };
}

function scoreRange(u, low, high) {
  if (low == null) return [0, 1];
  const room = Math.max((high - low) * 0.1, 0.005);
  return [low - room, high + room];
}

function series(s) {
  return {
    scale: s.scale || "y", stroke: token(s.colour), width: 1.75, dash: s.dash, spanGaps: true,
    points: { show: Boolean(s.dots), size: 5, fill: token("paper"), width: 1.5 },
    ...(s.steps && { paths: uPlot.paths.stepped({ align: 1 }), fill: faded(s.colour, 20) }),
    ...(s.fill && { fill: faded(s.colour, 10) }),
  };
}

function xWord(x, u, axis) {
  if (axis !== "clock") return number(x);
  const span = u.scales.x.max - u.scales.x.min;
  const date = new Date(x * 1000);
  return span > 86400 ? shortTime(date) : clock(date, span < 600);
}

export function title(element, lane) {
  element.replaceChildren(Object.assign(document.createElement("h2"), { textContent: lane.title }));
  return lane.series.map((s) => {
    const key = document.createElement("span");
    key.className = `key c-${s.colour}`;
    const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    line.innerHTML = `<path d="M0 4h20" stroke="currentColor" stroke-width="2" ${s.dash ? `stroke-dasharray="${s.dash.join(" ")}"` : ""}/>${s.dots ? '<circle cx="10" cy="4" r="3" fill="currentColor"/>' : ""}`;
    line.setAttribute("viewBox", "0 0 20 8");
    line.setAttribute("aria-hidden", "true");
    const word = Object.assign(document.createElement("span"), { textContent: s.word, className: "soft" });
    const value = document.createElement("output");
    key.append(line, word, value);
    element.append(key);
    return value;
  });
}

export function drawMarks(u, groups, lit) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  for (const group of groups) {
    const x = Math.round(u.valToPos(group.x, "x", true)) + 0.5;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = group === lit ? token("ink") : faded(group.colour, group.isMinor ? 30 : 80);
    ctx.setLineDash(group === lit ? [] : group.isMinor ? [1, 4].map((n) => n * devicePixelRatio) : [4, 3].map((n) => n * devicePixelRatio));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
