// One EventSource a page. Its events only say what changed: the parts that show it are fetched again as text.
const NAMES = ["job", "metrics", "timeline", "log", "sweep", "schedule", "cluster"];
const PAUSE_MS = 1000;
const RETRY_MS = 3000;
const PRESS_MS = 10000;

export function installLive(topics) {
  const waiting = new Set();
  let timer = null;

  function tell(name) {
    waiting.add(name);
    if (!timer && !document.hidden) timer = setTimeout(flush, waiting.size === 1 ? 120 : PAUSE_MS);
  }
  function flush() {
    const names = [...waiting];
    waiting.clear();
    timer = setTimeout(() => {
      timer = null;
      if (waiting.size && !document.hidden) flush();
    }, PAUSE_MS);
    for (const name of names) document.body.dispatchEvent(new CustomEvent(`live:${name}`));
  }
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && waiting.size && !timer) flush();
  });
  const isPressed = watchPresses();
  skipSwaps(isPressed, tell);
  watchState(tell);
  if (topics) listen(topics, tell);
}

function listen(topics, tell) {
  const query = topics.split(/\s+/).map((t) => `topic=${encodeURIComponent(t)}`).join("&");
  let lostAt = null;
  const banner = document.getElementById("stale");
  setInterval(() => {
    const age = lostAt && Math.round((Date.now() - lostAt) / 1000);
    banner.hidden = !(age >= 2);
    if (age >= 2) banner.querySelector("span").textContent = age < 90 ? `${age} s` : `${Math.round(age / 60)} min`;
  }, 1000);

  let source = null;
  function open() {
    if (document.hidden) return;
    source = new EventSource(`/api/v1/stream?${query}`);
    // A new stream begins now, with the cluster at least: what was written since the page was made is in no event.
    let isNew = true;
    source.onopen = () => {
      if (lostAt) NAMES.forEach(tell);
      lostAt = null;
    };
    source.onerror = () => {
      lostAt ??= Date.now();
      if (source.readyState === EventSource.CLOSED) setTimeout(open, RETRY_MS);
    };
    const hear = (name) => {
      (isNew ? NAMES : [name]).forEach(tell);
      isNew = false;
    };
    for (const name of NAMES) source.addEventListener(name, () => hear(name));
  }
  // A browser allows six connections to one host: tabs that nobody looks at must not hold them.
  document.addEventListener("visibilitychange", () => {
    source?.close();
    if (!document.hidden) open();
  });
  addEventListener("pagehide", () => source?.close());
  open();
}

// A browser sends no click to a button that was replaced while it was held down.
function watchPresses() {
  let since = null;
  const press = () => (since = Date.now());
  const release = () => setTimeout(() => (since = null));
  addEventListener("pointerdown", press, true);
  addEventListener("keydown", (event) => event.key === " " && press(), true);
  for (const name of ["pointerup", "pointercancel", "contextmenu", "keyup", "blur"]) addEventListener(name, release, true);
  return () => since !== null && Date.now() - since < PRESS_MS;
}

// Whether an action is on its way, or its answer leads to another page.
function watchActions() {
  let number = 0;
  const isAction = (event) => event.detail.requestConfig.verb !== "get";
  document.addEventListener("htmx:beforeRequest", (event) => isAction(event) && (number += 1));
  document.addEventListener("htmx:afterRequest", (event) => {
    if (isAction(event) && !event.detail.xhr.getResponseHeader("HX-Redirect")) number -= 1;
  });
  return () => number > 0;
}

// A part whose text did not change is left alone, so that focus, selection and open details stay; so is one that
// arrives while something is held down, to be fetched again a moment later.
function skipSwaps(isPressed, tell) {
  const last = new Map();
  const isActing = watchActions();
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { elt, xhr, requestConfig, target } = event.detail;
    const isPart = elt.matches("[hx-trigger*='live:']") && requestConfig.verb === "get";
    if (xhr.status === 404 && isPart && isActing()) return; // the action's answer leads away from what it removed
    if (xhr.status === 401 || (xhr.status === 404 && isPart)) return location.reload();
    if (!isPart) return last.delete(target.id);
    if (isPressed()) {
      event.detail.shouldSwap = false;
      return tell(elt.getAttribute("hx-trigger").match(/live:(\w+)/)[1]);
    }
    event.detail.shouldSwap &&= last.get(target.id) !== xhr.responseText;
    last.set(target.id, xhr.responseText);
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    const open = event.detail.target.querySelector?.("details[open]");
    // What is in closed details takes no focus, so that it is given back once they are open again.
    const focused = open?.contains(document.activeElement) && document.activeElement.id;
    if (open && event.detail.shouldSwap) document.addEventListener("htmx:afterSwap", () => {
      document.getElementById(event.detail.target.id)?.querySelector("details")?.setAttribute("open", "");
      if (focused && document.activeElement === document.body) document.getElementById(focused)?.focus();
    }, { once: true });
  });
}

function watchState(tell) {
  const seen = () => document.getElementById("summary")?.dataset.state;
  let state = seen();
  document.addEventListener("htmx:afterSwap", () => {
    if (seen() === state) return;
    state = seen();
    tell("state");
  });
}
