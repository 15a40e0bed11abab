// One pod: figures, facts, apps, log and events.

import { appButtons, podButtons } from "./actions.js";
import { SAMPLES, newest, pod as find, samplesOf, state } from "./data.js";
import { badge, bytes, cell, empty, exactly, h, keepingFocus, moment, percent, rate, setTitle, table, tableBody, tableRow, when } from "./dom.js";
import { eventText } from "./lists.js";
import { Tile } from "./graphs.js";
import { LogView } from "./logs.js";

export function podView(uuid) {
  const tiles = {
    cpu: new Tile("Processor", ["cpu"], SAMPLES, true),
    memory: new Tile("Memory", ["memory"], SAMPLES, true),
    network: new Tile("Network", ["received", "sent"], SAMPLES, true),
  };
  const head = h("div", { class: "row apart" });
  const notices = h("div", { class: "notices", hidden: true });
  const facts = h("dl", { class: "facts" });
  const apps = tableBody();
  const feed = h("ul", { class: "feed" });
  const log = state.session.logs ? new LogView(uuid) : null;
  const page = h("div");
  let said = "";
  let known = find(uuid);

  function update() {
    const pod = find(uuid);
    if (pod !== undefined) known = pod;
    if (known === undefined) {
      head.replaceChildren(h("h1", {}, "This pod is not there"));
      return;
    }
    const now = JSON.stringify([known, pod === undefined]);
    if (now === said) return;
    said = now;
    setTitle(known.displayName);
    keepingFocus(page, () => {
      head.replaceChildren(
        h("div", { class: "row" }, h("h1", {}, known.displayName), pod ? badge(pod.state, pod.exitCode) : badge("removed")),
        pod ? podButtons(pod) ?? "" : "");
      const texts = [
        known.manager && [`${known.manager} manages this pod.`, ""],
        known.reason && [known.reason, "bad"],
      ].filter(Boolean);
      notices.hidden = texts.length === 0;
      notices.replaceChildren(...texts.map(([text, kind]) => h("p", { class: `notice ${kind}` }, text)));
      facts.replaceChildren(...factsOf(known).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
      apps.replaceChildren(...known.apps.map((app) => tableRow([
        cell("", "name", app.name, app.says ? h("div", { class: "small soft" }, app.says) : null),
        cell("State", "", h("div", { class: "chips" }, badge(app.state, app.exitCode), app.state === "running" && app.health ? badge(app.health) : null)),
        cell("Image", "wide", h("span", { class: "small" }, app.imageName || app.image || "–")),
        cell("Restarts", "number", String(app.restarts)),
        cell("Started", "number", moment(app.startedAt)),
        cell("", "right wide", pod ? appButtons(pod, app) : null),
      ])));
      log?.setApps(known.apps.map((app) => app.name));
    });
  }

  function usage() {
    const { cpu, memory, received, sent } = samplesOf(uuid);
    const last = state.last.get(uuid);
    tiles.cpu.draw(percent(newest(cpu)), "of one processor", [cpu], 0.1);
    tiles.memory.draw(bytes(newest(memory)),
      last?.memoryLimit ? `of ${bytes(last.memoryLimit)}` : "no limit", [memory], 1 << 20);
    const host = known?.hostNetwork;
    tiles.network.draw(host ? "–" : rate(newest(received)), host ? "in the host's network" : `in, ${rate(newest(sent))} out`,
      [received, sent], 1024);
  }

  function events() {
    const own = state.events.filter((event) => event.id === uuid).reverse();
    feed.replaceChildren(...own.map((event) => h("li", {}, h("time", { class: "soft number", datetime: event.at, title: exactly(event.at) }, when(event.at)),
      h("span", {}, eventText(event)))));
    if (own.length === 0) feed.replaceChildren(empty("Nothing has happened lately."));
  }

  page.append(
    h("p", { class: "small" }, h("a", { href: "#/pods" }, "← All pods")), head);
  return {
    title: known?.displayName ?? "Pod",
    element: [
      page, notices,
      h("section", { class: "tiles", "aria-label": "Figures" }, Object.values(tiles).map((tile) => tile.element)),
      h("section", { class: "card", "aria-label": "Apps" }, h("div", { class: "head" }, h("h2", {}, "Apps")),
        table("Apps", [["Name", "name"], ["State"], ["Image"], ["Restarts"], ["Started"], ["", "right"]], apps)),
      log === null ? null : log.element,
      h("div", { class: "two" },
        h("section", { class: "card", "aria-label": "Facts" }, h("div", { class: "head" }, h("h2", {}, "Facts")), facts),
        h("section", { class: "card", "aria-label": "Events" }, h("div", { class: "head" }, h("h2", {}, "Events")), feed)),
    ].filter(Boolean),
    update: (what) => {
      if (what === "pods") update();
      else if (what === "usage") usage();
      else if (what === "event") events();
    },
    begin: () => { update(); usage(); events(); log?.begin(); },
    end: () => log?.end(),
  };
}

function factsOf(pod) {
  const lines = (list) => (list.length ? list.map((text) => h("div", { class: "mono" }, text)) : "–");
  return [
    ["Name", pod.name],
    ["UUID", h("span", { class: "mono" }, pod.uuid)],
    ["Networks", pod.hostNetwork ? "the host's, or none" : lines(pod.networks.map((one) =>
      `${one.network} ${one.interface} ${one.addresses.join(" ")}`.trim()))],
    ["Published ports", lines(pod.ports)],
    ["Created", exactly(pod.createdAt)],
    ["Started", exactly(pod.startedAt)],
    ...(pod.finishedAt ? [["Ended", exactly(pod.finishedAt)]] : []),
    ["Restart policy", pod.restarts ? `${pod.restartPolicy}, restarted ${pod.restarts} times` : pod.restartPolicy],
    ...(pod.restartsAt ? [["Next restart", exactly(pod.restartsAt)]] : []),
    ["Stager", pod.stager],
    ...(pod.notes.length ? [["Notes", pod.notes.map((text) => h("div", { class: "small" }, text))]] : []),
  ];
}
