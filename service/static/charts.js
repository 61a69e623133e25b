// The charts of a job, of one metric, or of several jobs: lanes under each other on one axis, step or clock.
import { RIGHT, drawMarks, isShare, options, shown, title } from "./lanes.js";
import { group, placeButtons, readMarks } from "./marks.js";

const root = document.querySelector("[data-charts]");
const COLOURS = ["accent", "second", "third", "bad", "good", "ink"];
const DASHES = [undefined, [6, 3], [2, 2], [8, 2, 2, 2], [10, 4], [1, 3]];
const MAX_POINTS = 800;
const RETRY_MS = 5000;
const view = { axis: "step", width: 0, right: 0, from: null, to: null };
let sets = []; // one a job: {id, name, points: [{step, time, values}]}
let charts = []; // {u, lane, element, outputs}
let groups = [];
let lit = null;
let isZooming = false;

function readUrl() {
  const query = new URLSearchParams(location.search);
  view.axis = query.get("x") === "clock" ? "clock" : "step";
  view.from = query.has("from") ? Number(query.get("from")) : null;
  view.to = query.has("to") ? Number(query.get("to")) : null;
}

async function getJson(url) {
  const answer = await fetch(url, { headers: { Accept: "application/json" } });
  if (answer.status === 401) location.reload();
  if (!answer.ok) throw new Error(`the service answered ${answer.status}`);
  return answer.json();
}

async function load(isWhole = true) {
  try {
    if (root.dataset.compare) await loadCompared();
    else await loadJob(isWhole);
    const isBare = !sets.some((s) => s.points.length);
    root.classList.toggle("is-bare", isBare);
    say(isBare ? "No point yet. The charts begin with the first optimizer step." : "");
    if (!isBare) draw(!charts.length);
  } catch (error) {
    say(`The points cannot be fetched (${error.message}). The rest of the page works; they are asked for again in 5 s.`);
    setTimeout(load, RETRY_MS);
  }
}

async function loadJob(isWhole) {
  const before = sets[0]?.points || [];
  const known = isWhole || before.length > MAX_POINTS * 2 ? [] : before;
  const since = known.length ? `&since_step=${known.at(-1).step}` : "";
  const answer = await getJson(`/api/v1/jobs/${root.dataset.job}/metrics?keys=${encodeURIComponent(root.dataset.keys)}&max_points=${MAX_POINTS}${since}`);
  const last = known.at(-1)?.step ?? -1;
  const points = [...known, ...answer.points.filter((p) => p.step > last)];
  sets = [{ id: root.dataset.job, name: "", points }];
}

async function loadCompared() {
  const answer = await getJson(`/api/v1/compare?jobs=${encodeURIComponent(root.dataset.compare)}&keys=${encodeURIComponent(root.dataset.keys)}&max_points=${MAX_POINTS}`);
  sets = answer.series.map((s) => ({ id: s.job_id, name: `${s.name} …${s.job_id.slice(-6)}`, points: s.points }));
}

const seconds = (point) => (typeof point.time === "number" ? point.time : Date.parse(point.time) / 1000);
const xOf = (point) => (view.axis === "clock" ? seconds(point) : point.step);
const has = (key) => sets.some((s) => s.points.some((p) => p.values[key] != null));

function lanes() {
  // Tall windows get taller charts, so that the three fill the first screen.
  const tall = (px) => Math.round(px * Math.min(1.5, Math.max(1, innerHeight / 800)));
  const { single, singleWord, score, scoreWord, loss = "", most = "1" } = root.dataset;
  if (single) {
    const series = sets.map((s, i) => ({ key: single, set: i, word: s.name, colour: COLOURS[i % 6], dash: DASHES[i % 6], dots: single.startsWith("eval.") }));
    return [{ name: "single", title: singleWord, series, height: 280, isLast: true }];
  }
  const evals = loss.split(",").filter((key) => key && key !== "loss" && has(key));
  return [
    { name: "loss", title: "Loss", height: tall(168), series: [
      { key: "loss", word: "training", colour: "accent" },
      ...evals.map((key) => ({ key, word: "evaluation", colour: "second", dash: [6, 3], dots: true })),
      ...(score && has(score) ? [{ key: score, word: scoreWord.toLowerCase(), colour: "third", scale: "score", dots: true, dash: [2, 2] }] : []),
    ] },
    { name: "throughput", title: "Samples a second", height: tall(88), space: 26, range: fromZero, series: [{ key: "samples_per_s", word: "", colour: "accent" }] },
    { name: "workers", title: "Workers", height: tall(88), space: 16, isLast: true, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500], range: () => [0, Number(most) + 0.25], series: [{ key: "workers", word: "", colour: "accent", steps: true }] },
  ];
}

const fromZero = (u, low, high) => [0, (high || 1) * 1.1];

function columns(lane) {
  if (sets.length === 1) {
    const { points } = sets[0];
    return [points.map(xOf), ...lane.series.map((s) => points.map((p) => p.values[s.key] ?? null))];
  }
  return uPlot.join(lane.series.map((s) => [sets[s.set].points.map(xOf), sets[s.set].points.map((p) => p.values[s.key] ?? null)]));
}

function draw(isWhole) {
  const wanted = lanes();
  const shape = (list) => list.map((l) => l.series.map((s) => s.key + s.set)).join("|");
  if (!isWhole && charts.length && shape(charts.map((c) => c.lane)) === shape(wanted)) {
    for (const chart of charts) chart.u.setData(columns(chart.lane), view.from == null);
    return settle();
  }
  for (const chart of charts) chart.u.destroy();
  view.width = root.clientWidth;
  view.right = wanted.some((l) => l.series.some((s) => s.scale === "score")) ? RIGHT : 8;
  charts = wanted.map((lane) => {
    const element = root.querySelector(`[data-lane=${lane.name}]`);
    const outputs = title(element.querySelector(".lane-title"), lane);
    const plot = element.querySelector(".plot");
    plot.classList.remove("skeleton");
    const u = new uPlot({ ...options(lane, view), hooks: hooks(lane, outputs) }, columns(lane), plot);
    describe(plot, u, lane);
    return { u, lane, element, outputs };
  });
  if (view.from != null) zoom(view.from, view.to);
  settle();
}

function hooks(lane, outputs) {
  const values = (u) => lane.series.forEach((s, i) => {
    const at = u.cursor.idx ?? u.data[0].length - 1;
    let j = at;
    while (j >= 0 && u.data[i + 1][j] == null) j -= 1;
    outputs[i].textContent = shown(s.key, u.data[i + 1][j]);
  });
  return {
    draw: [(u) => drawMarks(u, groups, lit)],
    setCursor: [values],
    setData: [values],
    ready: [values],
    setSelect: [(u) => zoomToSelection(u)],
  };
}

function zoomToSelection(u) {
  const { left, width } = u.select;
  if (width < 4) return;
  zoom(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
}

function zoom(from, to) {
  if (isZooming) return;
  isZooming = true;
  [view.from, view.to] = [from, to];
  for (const { u } of charts) {
    const xs = u.data[0];
    u.setScale("x", from == null ? { min: xs[0], max: xs.at(-1) } : { min: from, max: to });
  }
  const url = new URL(location.href);
  for (const [name, value] of [["from", from], ["to", to]]) {
    if (value == null) url.searchParams.delete(name);
    else url.searchParams.set(name, Math.round(value));
  }
  history.replaceState(history.state, "", url);
  isZooming = false;
  settle();
}

// Marks and their buttons follow the scale, once uPlot has drawn.
function settle() {
  root.querySelector("[data-unzoom]").hidden = view.from == null;
  requestAnimationFrame(() => {
    if (!charts.length || charts[0].lane.name !== "loss") return;
    const { u, element } = charts[0];
    groups = u.scales.x.min == null ? [] : group(readMarks(view.axis), u);
    placeButtons(element, groups, u, light);
    for (const chart of charts) chart.u.redraw(false, false);
  });
}

function light(g) {
  lit = g;
  for (const chart of charts) chart.u.redraw(false, false);
}

function describe(plot, u, lane) {
  plot.tabIndex = 0;
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `${lane.title}: ${lane.series.map((s, i) => {
    const ys = u.data[i + 1].filter((y) => y != null);
    return ys.length ? `${s.word ? `${s.word} from` : "from"} ${shown(s.key, ys[0])} to ${shown(s.key, ys.at(-1))}` : "no point yet";
  }).join(", ")}. Arrow keys move the cursor, plus and minus zoom, 0 shows all.`);
  plot.onkeydown = (event) => onKey(event, u);
}

function onKey(event, u) {
  const xs = u.data[0];
  const { min, max } = u.scales.x;
  const at = u.cursor.idx ?? xs.length - 1;
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (move) {
    const next = Math.max(0, Math.min(xs.length - 1, at + move * Math.max(1, Math.round(xs.length / 50))));
    u.setCursor({ left: u.valToPos(xs[next], "x"), top: 0 });
  } else if (event.key === "+" || event.key === "-") {
    const half = ((max - min) / 2) * (event.key === "+" ? 0.5 : 2);
    const middle = Math.max(xs[0] + half, Math.min(xs.at(-1) - half, xs[at]));
    if (half * 2 >= xs.at(-1) - xs[0]) zoom(null, null);
    else zoom(middle - half, middle + half);
  } else if (event.key === "0") zoom(null, null);
  else return;
  event.preventDefault();
}

function say(text) {
  const note = root.querySelector("[data-note]");
  note.textContent = text;
  note.hidden = !text;
}

function install() {
  readUrl();
  root.querySelector("[data-unzoom]").addEventListener("click", () => zoom(null, null));
  root.addEventListener("dblclick", () => zoom(null, null));
  for (const link of root.querySelectorAll("[data-axis]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      history.replaceState(history.state, "", link.href);
      root.querySelector("[data-axis][aria-current]")?.removeAttribute("aria-current");
      link.setAttribute("aria-current", "true");
      readUrl();
      draw(true);
    });
  }
  new ResizeObserver(() => {
    if (!charts.length || root.clientWidth === view.width) return;
    view.width = root.clientWidth;
    for (const { u, lane } of charts) u.setSize({ width: view.width, height: lane.height });
    settle();
  }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.length && draw(true));
  document.body.addEventListener("live:metrics", () => load(false));
  for (const name of ["timeline", "state"]) document.body.addEventListener(`live:${name}`, () => load(true));
  document.addEventListener("htmx:afterSwap", (event) => event.detail.target.id === "happened" && settle());
  load();
}

if (root) install();
