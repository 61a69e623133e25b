// Small manners of forms: the slider and its number, selected rows, a log that follows its end.
export function installForms() {
  document.addEventListener("input", (event) => {
    const other = event.target.dataset?.with && document.querySelector(event.target.dataset.with);
    if (other) other.value = event.target.value;
    if (other) showSize();
    if (event.target.name === "job") countChecked();
  });
  document.addEventListener("change", (event) => {
    if ("submit" in (event.target.dataset || {})) event.target.form.requestSubmit();
  });

  let checked = [];
  let typed = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { target, requestConfig, xhr } = event.detail;
    // News, a refusal, or the answer to another form: what was accepted itself begins anew.
    const accepted = requestConfig.verb !== "get" && xhr.status < 400 ? requestConfig.path : null;
    const isSent = (field) => accepted !== null && field.form?.getAttribute("hx-post") === accepted;
    const isUnsent = (field) => field.value !== field.defaultValue && !isSent(field);
    const fields = [...(target.querySelectorAll?.("input[id]:is([type=number], [type=text])") || [])];
    typed = fields.filter(isUnsent).map((field) => [field.id, field.value]);
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id !== "list") return;
    checked = [...document.querySelectorAll("input[name=job]:checked")].map((box) => box.id);
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const id of checked) document.getElementById(id)?.click();
    checked = [];
    for (const [id, value] of typed) {
      const field = document.getElementById(id);
      if (field) field.value = value;
    }
    typed = [];
    countChecked();
    scrollLog();
    showSize();
  });
  document.addEventListener("scroll", (event) => {
    const log = event.target;
    const follow = document.getElementById("follow");
    if (follow && log.matches?.("[data-follow]")) follow.checked = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  }, true);
  document.getElementById("follow")?.addEventListener("change", scrollLog);
  if (location.hash) document.querySelector(location.hash)?.scrollIntoView({ block: "center" });
  else scrollLog();
  countChecked();
  showSize();
}

// What is foreseen of the number of workers that the slider stands at: lit in the list, and told by the slider itself.
function showSize() {
  const slider = document.getElementById("slider");
  if (!slider) return;
  slider.removeAttribute("aria-valuetext");
  for (const row of document.querySelectorAll("[data-size]")) {
    const isIt = row.dataset.size === slider.value;
    row.classList.toggle("lit", isIt);
    if (isIt) slider.setAttribute("aria-valuetext", row.dataset.told);
  }
}

function countChecked() {
  const note = document.querySelector("[data-count]");
  if (!note) return;
  const num = document.querySelectorAll("input[name=job]:checked").length;
  note.parentElement.classList.toggle("is-active", num > 0);
  note.textContent = num ? `With the ${num} selected:` : "Select jobs to act on them.";
  for (const button of note.parentElement.querySelectorAll("button")) button.disabled = num === 0;
}

function scrollLog() {
  const log = document.querySelector("[data-follow]");
  if (log && document.getElementById("follow")?.checked) log.scrollTop = log.scrollHeight;
}
