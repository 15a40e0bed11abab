// The list of pods, with the sums of the host's pods above it.

import { podButtons } from "./actions.js";
import { SAMPLES, newest, samplesOf, state } from "./data.js";
import { badge, bytes, cell, empty, h, keepingFocus, moment, percent, plural, rate, table, tableBody, tableRow } from "./dom.js";
import { Graph, Tile } from "./graphs.js";

const ENDED = ["stopped", "errored"];
const chosen = { text: "", which: "all" };

export function podsView() {
  const tiles = {
    cpu: new Tile("Processor", ["cpu"], SAMPLES),
    memory: new Tile("Memory", ["memory"], SAMPLES),
    network: new Tile("Network", ["received", "sent"], SAMPLES),
  };
  const count = h("div", { class: "card tile" });
  const body = tableBody();
  const shown = table("Pods", [
    ["Name", "name"], ["State"], ["Apps"], ["Processor"], ["Memory"], ["Network"], ["Started"], ["", "right"],
  ], body);
  const nothing = h("div");
  const left = h("p", { class: "empty", hidden: true });
  const rows = new Map();
  const search = h("input", {
    type: "search", placeholder: "Find a pod", "aria-label": "Find a pod", value: chosen.text, autocomplete: "off",
    oninput: () => { chosen.text = search.value; update(); },
  });
  const which = h("select", { "aria-label": "Which pods", onchange: () => { chosen.which = which.value; update(); } },
    [["all", "All pods"], ["running", "Running"], ["ended", "Ended"]].map(([value, text]) =>
      h("option", { value, selected: value === chosen.which }, text)));

  function matches(pod) {
    if (chosen.which !== "all" && ENDED.includes(pod.state) !== (chosen.which === "ended")) return false;
    const text = [pod.name, pod.displayName, pod.uuid, ...pod.apps.map((app) => `${app.name} ${app.imageName}`)].join(" ");
    return text.toLowerCase().includes(chosen.text.trim().toLowerCase());
  }

  function update() {
    const pods = state.pods.filter(matches);
    const wanted = pods.map((pod) => {
      const row = rows.get(pod.uuid) ?? new Row();
      rows.set(pod.uuid, row);
      row.update(pod);
      return row.element;
    });
    for (const uuid of rows.keys()) if (!state.pods.some((pod) => pod.uuid === uuid)) rows.delete(uuid);
    if (wanted.length !== body.children.length || wanted.some((row, at) => row !== body.children[at])) {
      keepingFocus(body, () => body.replaceChildren(...wanted));
    }
    shown.hidden = pods.length === 0;
    nothing.replaceChildren(...(pods.length ? [] : [state.pods.length
      ? empty("No pod matches.")
      : empty("There are no pods yet.", "kurma run -d docker://docker.io/library/nginx")]));
    left.hidden = state.left === 0;
    left.textContent = `${state.left} more are not shown: kurma list --all`;
    const up = state.pods.filter((pod) => pod.state === "running").length;
    const failed = state.pods.filter((pod) => pod.state === "errored" || pod.exitCode).length;
    count.replaceChildren(h("div", { class: "what" }, "Pods"), h("div", { class: "value" }, `${up} running`),
      h("div", { class: "more" }, `${plural(state.pods.length + state.left, "pod")} in all${failed ? `, ${failed} failed` : ""}`));
    usage();
  }

  function usage() {
    const { cpu, memory, received, sent } = state.totals;
    tiles.cpu.draw(percent(newest(cpu)), "of one processor", [cpu], 0.1);
    tiles.memory.draw(bytes(newest(memory)), "without cached files", [memory], 1 << 20);
    tiles.network.draw(rate(newest(received)), `in, ${rate(newest(sent))} out`, [received, sent], 1024);
    for (const row of rows.values()) row.usage();
  }

  return {
    title: "Pods",
    element: [
      h("h1", { class: "unseen" }, "Pods"),
      h("section", { class: "tiles", "aria-label": "All pods together" }, count, Object.values(tiles).map((tile) => tile.element)),
      h("section", { class: "card", "aria-label": "Pods" }, h("div", { class: "head" }, h("h2", {}, "Pods"), h("div", { class: "row" }, search, which)),
        shown, nothing, left),
    ],
    update: (what) => { if (what === "pods") update(); else if (what === "usage") usage(); },
    begin: update,
  };
}

class Row {
  constructor() {
    this.cpu = new Meter("Processor", ["cpu"]);
    this.memory = new Meter("Memory", ["memory"]);
    this.network = h("span", { class: "both number" });
    this.name = cell("", "name");
    this.state = cell("State");
    this.apps = cell("Apps");
    this.started = cell("Started", "number");
    this.actions = cell("", "right wide");
    this.element = tableRow([this.name, this.state, this.apps, cell("Processor", "", this.cpu.element),
      cell("Memory", "", this.memory.element), cell("Network", "", this.network), this.started, this.actions]);
  }

  update(pod) {
    this.pod = pod;
    const said = JSON.stringify(pod);
    if (said !== this.said) {
      this.said = said;
      keepingFocus(this.element, () => {
        this.name.replaceChildren(h("a", { href: `#/pod/${pod.uuid}`, "data-key": `${pod.uuid} open` }, pod.displayName),
          ...(pod.manager ? [h("div", { class: "small soft" }, `managed by ${pod.manager}`)] : []));
        this.state.replaceChildren(badge(pod.state, pod.exitCode));
        this.apps.replaceChildren(h("div", { class: "chips" }, pod.apps.map(appChip)));
        this.actions.replaceChildren(podButtons(pod) ?? "");
      });
    }
    this.started.replaceChildren(moment(pod.startedAt));
  }

  usage() {
    const runs = this.pod.state === "running";
    const { cpu, memory, received, sent } = samplesOf(this.pod.uuid);
    this.cpu.draw(runs ? percent(newest(cpu)) : "–", cpu, 0.1);
    this.memory.draw(runs ? bytes(newest(memory)) : "–", memory, 1 << 20);
    const none = !runs || newest(received) === null;
    this.network.replaceChildren(...(none ? ["–"] : [h("span", {}, `↓ ${rate(newest(received))}`), h("span", {}, `↑ ${rate(newest(sent))}`)]));
  }
}

function appChip(app) {
  const shown = badge((app.state === "running" && app.health) || app.state, app.exitCode);
  const state = shown.textContent;
  shown.textContent = app.name;
  shown.title = `${app.name}: ${state}${app.says ? `, ${app.says}` : ""}`;
  shown.append(h("span", { class: "unseen" }, `: ${state}`));
  return shown;
}

class Meter {
  constructor(label, kinds) {
    this.graph = new Graph(label, kinds, SAMPLES / 2);
    this.value = h("span", { class: "number" });
    this.element = h("div", { class: "meter" }, this.value, this.graph.element);
  }

  draw(text, values, least) {
    this.value.textContent = text;
    this.graph.draw([values], least, text);
    this.graph.element.classList.toggle("none", text === "–");
  }
}
