// "/" to search, "j" and "k" through the rows of a list, "x" to select one.
export function installKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (event.key === "/") {
      const field = document.querySelector("[data-hotkey='/']");
      if (field) {
        event.preventDefault();
        field.focus();
        field.select();
      }
    } else if (event.key === "j" || event.key === "k") {
      moveRow(event.key === "j" ? 1 : -1);
    } else if (event.key === "x") {
      document.activeElement.closest("[data-rows] tr")?.querySelector("input[type=checkbox]")?.click();
    }
  });
}

function isTyping(target) {
  return target.closest?.("dialog, textarea, select, input:not([type=checkbox])") != null;
}

function moveRow(by) {
  const links = [...document.querySelectorAll("[data-rows] th a.name")];
  if (!links.length) return;
  const row = document.activeElement.closest("[data-rows] tr");
  const at = links.findIndex((link) => row?.contains(link));
  const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by;
  links[Math.max(0, Math.min(links.length - 1, next))].focus();
}
