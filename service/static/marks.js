// Timeline marks: read from the list that the server wrote, grouped where they would overlap, each reachable by key.
const WEIGHT = ["checkpoint", "end", "start", "batch", "lr", "precision", "exchange", "probation", "pause", "worker_joined", "resize", "restore", "limit", "controller_lost", "failure", "worker_lost"];
const COLOURS = { worker_lost: "bad", failure: "bad", controller_lost: "bad", resize: "accent", worker_joined: "accent", start: "accent", restore: "warn", limit: "warn", pause: "warn", end: "good" };
const NEAR_PX = 22;

export function readMarks(axis) {
  return [...document.querySelectorAll("#happened li[data-kind]")].map((row) => ({
    row, kind: row.dataset.kind, isMinor: row.dataset.kind === "checkpoint",
    x: axis === "clock" ? Date.parse(row.dataset.time) / 1000 : Number(row.dataset.step),
  })).filter((mark) => Number.isFinite(mark.x)).sort((a, b) => a.x - b.x);
}

export function group(marks, u) {
  const groups = [];
  const { min, max } = u.scales.x;
  for (const mark of marks) {
    if (mark.x < min || mark.x > max) continue;
    const left = u.valToPos(mark.x, "x");
    const before = groups.at(-1);
    if (before && left - before.left < NEAR_PX) before.marks.push(mark);
    else groups.push({ left, x: mark.x, marks: [mark] });
  }
  for (const g of groups) {
    const chief = g.marks.reduce((a, b) => (WEIGHT.indexOf(b.kind) > WEIGHT.indexOf(a.kind) ? b : a));
    Object.assign(g, { chief, x: chief.x, isMinor: chief.isMinor, colour: COLOURS[chief.kind] || "soft" });
  }
  return groups;
}

// Puts a button over each group; `light(group)` is called as one gains or loses the pointer or the focus.
export function placeButtons(lane, groups, u, light) {
  const strip = lane.querySelector(".marks");
  const detail = lane.querySelector(".mark-detail");
  const focused = strip.contains(document.activeElement) ? document.activeElement.dataset.row : null;
  const wasHidden = detail.hidden;
  const offset = u.over.offsetLeft;
  strip.replaceChildren(...groups.map((g) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.row = g.chief.row.id;
    button.className = `k-${g.chief.kind}`;
    button.setAttribute("aria-label", g.marks.map((m) => m.row.querySelector("p").textContent).slice(0, 6).join(". "));
    button.append(g.chief.row.querySelector("svg").cloneNode(true));
    button.style.left = `${offset + u.valToPos(g.x, "x")}px`;
    const show = () => {
      light(g);
      fill(detail, strip, g, offset + u.valToPos(g.x, "x"));
    };
    const hide = () => {
      light(null);
      detail.hidden = true;
    };
    button.addEventListener("pointerenter", show);
    button.addEventListener("focus", show);
    button.addEventListener("click", show);
    button.addEventListener("pointerleave", hide);
    button.addEventListener("blur", hide);
    button.addEventListener("keydown", (event) => event.key === "Escape" && hide());
    return button;
  }));
  if (!focused) return;
  strip.querySelector(`[data-row="${focused}"]`)?.focus();
  if (wasHidden) detail.hidden = true; // what was closed by hand stays closed where the chart is drawn anew
}

function fill(detail, strip, g, left) {
  const width = strip.parentElement.clientWidth;
  const list = document.createElement("ol");
  list.className = "timeline";
  for (const mark of g.marks.slice(-5)) {
    const copy = mark.row.cloneNode(true);
    copy.removeAttribute("id");
    list.append(copy);
  }
  detail.replaceChildren(list);
  detail.hidden = false;
  detail.style.top = `${strip.offsetTop + strip.offsetHeight + 4}px`;
  detail.style.left = `${Math.max(0, Math.min(width - detail.offsetWidth, left - detail.offsetWidth / 2))}px`;
}
