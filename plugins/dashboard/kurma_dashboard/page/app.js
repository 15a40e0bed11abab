// The page: sections by the address's fragment, the connection, the colours.

import { begin, listen, state } from "./data.js";
import { h, setTitle, toast } from "./dom.js";
import { eventsView, imagesView, networksView, secretsView, volumesView } from "./lists.js";
import { podView } from "./pod.js";
import { podsView } from "./pods.js";

const main = document.getElementById("main");
const VIEWS = {
  pods: podsView, images: imagesView, networks: networksView, volumes: volumesView, secrets: secretsView, events: eventsView,
};
let view = null;

function show(focus) {
  const [, section = "", name = ""] = location.hash.split("/");
  view?.end?.();
  view = section === "pod" ? podView(name) : (VIEWS[section] ?? podsView)();
  main.replaceChildren(...view.element);
  setTitle(view.title);
  const current = section === "pod" || !(section in VIEWS) ? "pods" : section;
  for (const link of document.querySelectorAll("#tabs a")) {
    if (link.hash === `#/${current}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view.begin();
  window.scrollTo(0, 0);
  if (focus) main.focus({ preventScroll: true });
}

function setLink(live) {
  const link = document.getElementById("link");
  link.dataset.state = live ? "live" : "lost";
  link.textContent = live ? "Live" : "Connecting";
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme() {
  const button = document.getElementById("theme");
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
}

document.getElementById("theme").addEventListener("click", () => {
  const chosen = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem("kurma-theme", chosen);
  } catch {
    // This browser keeps nothing.
  }
  setTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", setTheme);
document.getElementById("skip").addEventListener("click", () => main.focus());

setTheme();
listen((what, value) => {
  if (what === "link") setLink(value);
  else view?.update(what, value);
});
try {
  await begin();
  const { host, role, changes, version } = state.session;
  const look = role === "viewer" ? "viewer" : changes ? "" : "read-only";
  const shown = document.getElementById("host");
  shown.textContent = look ? `${host}, ${look}` : host;
  shown.title = `Kurma ${version}`;
  show(false);
  addEventListener("hashchange", () => show(true));
} catch (error) {
  main.replaceChildren(h("p", { class: "notice bad" }, error.message));
  toast(error.message, true);
}
