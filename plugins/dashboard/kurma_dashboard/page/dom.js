// Elements, and texts for people. Text from pods becomes text nodes, never markup.

/** Makes an element. A property that begins with "on" is a listener; false and null leave an attribute out. */
export function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Changes a part of the page; the focus stays on the element with the same data-key. */
export function keepingFocus(root, change) {
  const key = root.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  change();
  if (key !== undefined && document.activeElement?.dataset.key !== key) {
    [...root.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key)?.focus();
  }
}

/** A table whose rows become cards on a narrow screen: roles keep its meaning there.
 * @param columns [label, class] of each column. */
export function table(label, columns, body) {
  const heads = columns.map(([name, kind]) =>
    h("th", { role: "columnheader", scope: "col", class: kind }, name || h("span", { class: "unseen" }, "Actions")));
  return h("table", { role: "table", "aria-label": label },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), body);
}

export const tableBody = (rows = []) => h("tbody", { role: "rowgroup" }, rows);
export const tableRow = (cells) => h("tr", { role: "row" }, cells);
export const cell = (label, kind, ...children) =>
  h("td", { role: "cell", "data-label": label || null, class: kind || null }, ...children);

export const empty = (text, command) => h("div", { class: "empty" }, h("p", {}, text), command && h("code", {}, command));

// --- texts ---

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count.toFixed(unit === 0 || count >= 100 ? 0 : 1)} ${UNITS[unit]}`;
}

export const rate = (count) => (count === null || count === undefined ? "–" : `${bytes(count)}/s`);

/** @param share of one processor. */
export const percent = (share) =>
  share === null || share === undefined ? "–" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;

export function age(time) {
  if (!time) return "–";
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

export const moment = (time) =>
  time ? h("time", { datetime: time, title: new Date(time).toLocaleString() }, age(time)) : "–";

export const exactly = (time) => (time ? new Date(time).toLocaleString() : "–");
export const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
export const when = (time) =>
  new Date(time).toDateString() === new Date().toDateString() ? clock(time) : new Date(time).toLocaleString([], { hour12: false });
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// --- states ---

const GOOD = ["running", "healthy"];
const WARN = ["preparing", "starting", "stopping", "restarting", "created", "prepared"];
const BAD = ["errored", "killed", "oom", "start-failed", "unknown", "unhealthy"];

export function badge(state, exitCode) {
  const bad = BAD.includes(state) || (exitCode !== null && exitCode !== undefined && exitCode !== 0 && !GOOD.includes(state));
  const kind = bad ? "bad" : GOOD.includes(state) ? "good" : WARN.includes(state) ? "warn" : "";
  const failed = exitCode && !GOOD.includes(state);
  return h("span", { class: `badge ${kind}` }, failed ? `${state} (${exitCode})` : state);
}

export function toast(text, bad = false) {
  const shown = h("div", { class: bad ? "toast bad" : "toast" }, text);
  const toasts = document.getElementById("toasts");
  toasts.append(shown);
  while (toasts.children.length > 4) toasts.firstChild.remove();
  setTimeout(() => shown.remove(), bad ? 12000 : 5000);
}

export function setTitle(text) {
  document.title = `${text} – Kurma`;
}

export function speak(text) {
  document.getElementById("spoken").textContent = text;
}
