// Parallel coordinates: drag along an axis, or move its two sliders, and only the trials that pass there stay.
const state = new Map(); // axis -> [from, to], shares of its height
const PRECISION = 1000;

function readUrl() {
  const text = new URLSearchParams(location.search).get("brush") || "";
  for (const [, axis, from, to] of text.matchAll(/(\d+):([\d.]+)-([\d.]+)/g)) state.set(Number(axis), [Number(from), Number(to)]);
}

function writeUrl() {
  const url = new URL(location.href);
  const text = [...state].map(([axis, [from, to]]) => `${axis}:${from}-${to}`).join(",");
  if (text) url.searchParams.set("brush", text);
  else url.searchParams.delete("brush");
  history.replaceState(history.state, "", url);
}

const rounded = (share) => Math.round(Math.min(1, Math.max(0, share)) * PRECISION) / PRECISION;

function passes(line) {
  const at = line.dataset.at.split(" ");
  return [...state].every(([axis, [from, to]]) => at[axis] !== "-" && Number(at[axis]) >= from - 0.0005 && Number(at[axis]) <= to + 0.0005);
}

function apply() {
  const plot = document.querySelector("[data-parallel]");
  if (!plot) return;
  const lines = [...plot.querySelectorAll("polyline")];
  const kept = new Set();
  for (const line of lines) {
    const is = passes(line);
    line.classList.toggle("dim", !is);
    if (is) kept.add(line.dataset.trial);
  }
  for (const row of document.querySelectorAll("tr[data-trial]")) row.hidden = state.size > 0 && !kept.has(row.dataset.trial);
  const top = Number(plot.dataset.top);
  const height = Number(plot.dataset.bottom) - top;
  for (const brush of plot.querySelectorAll("[data-brush]")) {
    const range = state.get(Number(brush.dataset.brush));
    brush.setAttribute("y", range ? top + (1 - range[1]) * height : top);
    brush.setAttribute("height", range ? Math.max(2, (range[1] - range[0]) * height) : 0);
  }
  for (const input of document.querySelectorAll("#narrow input")) {
    const range = state.get(Number(input.dataset.axis)) || [0, 1];
    input.value = Math.round(range[input.dataset.end === "to" ? 1 : 0] * 100);
    input.setAttribute("aria-valuetext", wordOf(input));
  }
  document.querySelector("[data-brushed]").textContent = state.size ? `${kept.size} of ${lines.length} trials pass.` : "";
}

// What a share of the axis means: the nearest choice, or a number.
function wordOf(input) {
  const scale = JSON.parse(input.closest("fieldset").dataset.scale);
  const share = input.value / 100;
  if (scale.options) return scale.options[Math.round(share * (scale.options.length - 1))];
  const value = scale.log ? scale.low * (scale.high / scale.low) ** share : scale.low + share * (scale.high - scale.low);
  return String(Number(value.toPrecision(3)));
}

function set(axis, from, to) {
  const [low, high] = [rounded(Math.min(from, to)), rounded(Math.max(from, to))];
  if (low <= 0 && high >= 1) state.delete(axis);
  else state.set(axis, [low, high]);
  apply();
}

let dragged = null; // {axis, start, hasMoved}

function shareAt(event) {
  const plot = document.querySelector("[data-parallel]");
  const top = Number(plot.dataset.top);
  return 1 - (event.clientY - plot.getBoundingClientRect().top - top) / (Number(plot.dataset.bottom) - top);
}

document.addEventListener("pointerdown", (event) => {
  const grip = event.target.closest("[data-grip]");
  if (!grip) return;
  event.preventDefault();
  dragged = { axis: Number(grip.dataset.grip), start: shareAt(event), hasMoved: false };
});
document.addEventListener("pointermove", (event) => {
  if (!dragged) return;
  const share = shareAt(event);
  if (!dragged.hasMoved && Math.abs(share - dragged.start) < 0.02) return;
  dragged.hasMoved = true;
  set(dragged.axis, dragged.start, share);
});
function release() {
  if (!dragged) return;
  if (!dragged.hasMoved) set(dragged.axis, 0, 1);
  dragged = null;
  writeUrl();
}
document.addEventListener("pointerup", release);
document.addEventListener("pointercancel", release);
document.addEventListener("input", (event) => {
  if (!event.target.closest("#narrow")) return;
  const axis = Number(event.target.dataset.axis);
  const ends = [...document.querySelectorAll(`#narrow input[data-axis="${axis}"]`)].map((input) => input.value / 100);
  set(axis, ends[0], ends[1]);
  writeUrl();
});
document.addEventListener("htmx:afterSwap", apply);
readUrl();
apply();
