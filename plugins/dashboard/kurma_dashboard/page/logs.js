// The log of a pod, which follows.

import { clock, h } from "./dom.js";

const LINES = 2000;

export class LogView {
  constructor(uuid) {
    this.uuid = uuid;
    this.apps = [];
    this.open = new Map();
    this.lines = h("div", { class: "log wrap", role: "log", "aria-live": "off", "aria-label": "Log", tabindex: "0" });
    this.select = h("select", { "aria-label": "App", hidden: true, onchange: () => this.begin() }, h("option", { value: "" }, "All apps"));
    this.follow = h("input", { type: "checkbox", checked: true, onchange: () => this.scroll() });
    this.wrap = h("input", { type: "checkbox", checked: true, onchange: () => this.lines.classList.toggle("wrap", this.wrap.checked) });
    this.note = h("span", { class: "small soft", role: "status" });
    // A reader who scrolls up wants to stay there.
    this.lines.addEventListener("wheel", () => setTimeout(() => this.look()));
    this.lines.addEventListener("keyup", () => this.look());
    this.lines.addEventListener("touchend", () => this.look());
    this.element = h("section", { class: "card", "aria-label": "Log" },
      h("div", { class: "head" }, h("div", { class: "row" }, h("h2", {}, "Log"), this.note), h("div", { class: "row" }, this.select,
        h("label", { class: "check" }, this.follow, "Follow"), h("label", { class: "check" }, this.wrap, "Wrap lines"))),
      this.lines);
  }

  setApps(names) {
    if (names.join("\n") === this.apps.join("\n")) return;
    this.apps = names;
    const chosen = this.select.value;
    this.select.replaceChildren(h("option", { value: "" }, "All apps"), ...names.map((name) =>
      h("option", { value: name, selected: name === chosen }, name)));
    this.select.hidden = names.length < 2;
  }

  begin() {
    this.end();
    const app = this.select.value;
    this.source = new EventSource(`/api/pods/${this.uuid}/logs${app ? `?app=${encodeURIComponent(app)}` : ""}`);
    this.source.addEventListener("open", () => {
      this.lines.replaceChildren();
      this.open.clear();
      this.note.textContent = "";
    });
    this.source.addEventListener("lines", (message) => this.add(JSON.parse(message.data)));
    this.source.addEventListener("end", () => this.finish("the end"));
    this.source.addEventListener("failed", (message) => this.finish(JSON.parse(message.data).message));
    this.source.addEventListener("error", () => {
      this.note.textContent = this.source.readyState === EventSource.CLOSED ? "cannot be read" : "connecting";
    });
  }

  end() {
    this.source?.close();
  }

  finish(text) {
    this.end();
    this.note.textContent = text;
  }

  add(lines) {
    for (const [app, at, stream, partial, text] of lines) {
      const key = `${app} ${stream}`;
      let line = this.open.get(key);
      if (line === undefined) {
        line = h("div", {}, h("time", { datetime: at }, clock(at)), this.apps.length > 1 && h("span", { class: "from" }, app),
          h("span", { class: stream }));
        this.lines.append(line);
      }
      line.lastChild.textContent += text.replace(/\n$/, "");
      if (partial) this.open.set(key, line);
      else this.open.delete(key);
    }
    while (this.lines.children.length > LINES) this.lines.firstChild.remove();
    this.scroll();
  }

  scroll() {
    if (this.follow.checked) this.lines.scrollTop = this.lines.scrollHeight;
  }

  look() {
    const { scrollTop, scrollHeight, clientHeight } = this.lines;
    this.follow.checked = scrollHeight - scrollTop - clientHeight < 24;
  }
}
