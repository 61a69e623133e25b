// Times come from the server as exact UTC; here they are shown in the viewer's zone, the UTC stays in the tooltip.
const two = (n) => String(n).padStart(2, "0");
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

export function clock(date, withSeconds) {
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return withSeconds ? `${text}:${two(date.getSeconds())}` : text;
}

export function shortTime(date, withSeconds = false, now = new Date()) {
  const text = clock(date, withSeconds);
  if (date.toDateString() === now.toDateString()) return text;
  const year = date.getFullYear() === now.getFullYear() ? "" : ` ${date.getFullYear()}`;
  return `${day.format(date)}${year} ${text}`;
}

export function localiseTimes(root) {
  for (const element of root.querySelectorAll("time[data-when]")) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    element.textContent = shortTime(date, element.dataset.when === "clock");
    element.removeAttribute("data-when");
  }
}
