// Images, networks, volumes, secrets and events.

import { load, state } from "./data.js";
import { bytes, cell, empty, exactly, h, keepingFocus, moment, plural, table, tableBody, tableRow, toast, when } from "./dom.js";

export function eventText(event) {
  const what = event.subject === "app" ? `App ${event.name} ${event.kind}` : event.kind;
  const more = [event.exitCode !== null && event.exitCode !== undefined ? `exit code ${event.exitCode}` : "", event.reason ?? ""];
  const detail = more.filter(Boolean).join(", ");
  return detail ? `${what} (${detail})` : what;
}

/** @param used the server says which pods use each: a change of the pods loads the list again. */
function listView(title, what, columns, rows, nothing, used = false) {
  const body = tableBody();
  const shown = table(title, columns, body);
  const none = h("div", {}, empty("Loading"));
  function update() {
    const list = state[what];
    if (list === null) return;
    keepingFocus(body, () => body.replaceChildren(...rows(list)));
    shown.hidden = list.length === 0;
    none.replaceChildren(...(list.length ? [] : [nothing]));
  }
  shown.hidden = true;
  return {
    title,
    element: [h("section", { class: "card", "aria-label": title }, h("div", { class: "head" }, h("h1", {}, title)), shown, none)],
    update: (changed) => {
      if (changed === "pods" && used) load(what).catch(() => {});
      else if (changed === what || changed === "pods") update();
    },
    begin: () => { update(); load(what).catch((error) => toast(error.message, true)); },
  };
}

export const imagesView = () => listView("Images", "images",
  [["Name", "name"], ["ID"], ["Size", "right"], ["Trust"], ["Used by"], ["Fetched"]],
  (images) => images.map((image) => {
    const users = state.pods.filter((pod) => pod.apps.some((app) => app.image === image.id)).length;
    const names = image.names.length ? image.names : [image.name];
    return tableRow([
      cell("", "name", names.slice(0, 3).map((name) => h("div", {}, name)),
        image.managers.length ? h("div", { class: "small soft" }, `managed by ${image.managers.join(", ")}`) : null),
      cell("ID", "", h("code", { title: image.id }, image.id.slice(0, 19))),
      cell("Size", "right number", bytes(image.size)),
      cell("Trust", "", h("span", { class: "tag" }, image.trust)),
      cell("Used by", "", users ? plural(users, "pod") : h("span", { class: "soft" }, "no pod")),
      cell("Fetched", "number", moment(image.fetchedAt)),
    ]);
  }),
  empty("There are no images yet.", "kurma image fetch docker://docker.io/library/nginx"));

export const networksView = () => listView("Networks", "networks",
  [["Name", "name"], ["Driver"], ["Interface"], ["Pods"], ["Notes"]],
  (networks) => networks.map((network) => {
    const alive = state.pods.filter((pod) => pod.state === "running" && pod.networks.some((one) => one.network === network.name));
    const joined = alive.flatMap((pod) => pod.networks.filter((one) => one.network === network.name && one.addresses.length)
      .map((one) => h("div", { class: "small" }, h("a", { href: `#/pod/${pod.uuid}` }, pod.displayName), " ",
        h("span", { class: "mono soft" }, one.addresses.join(" ")))));
    const tags = [network.default && "default", network.source].filter(Boolean);
    return tableRow([
      cell("", "name", network.name),
      cell("Driver", "", network.driver || "–"),
      cell("Interface", "", network.interface ? h("code", {}, network.interface) : "–"),
      cell("Pods", "wide", joined.length ? joined : h("span", { class: "soft" }, alive.length ? plural(alive.length, "pod") : "none")),
      cell("Notes", "wide", h("div", { class: "row" }, tags.map((tag) => h("span", { class: "tag" }, tag)),
        network.problem ? h("span", { class: "badge bad" }, network.problem) : null)),
    ]);
  }),
  empty("There are no networks."));

/** Links to pods. @param names of pods, as the server has them for people, or UUIDs. */
function users(of, names) {
  if (names.length === 0) return h("span", { class: "soft" }, "no pod");
  return h("div", { class: "chips" }, names.map((name) => {
    const pod = state.pods.find((one) => [one.name, one.displayName, one.uuid].includes(name));
    return pod ? h("a", { href: `#/pod/${pod.uuid}`, "data-key": `${of}/${pod.uuid}` }, pod.displayName) : h("span", {}, name);
  }));
}

export const volumesView = () => listView("Volumes", "volumes",
  [["Name", "name"], ["Owner"], ["Mode"], ["Used by"], ["Created"]],
  (volumes) => volumes.map((volume) => tableRow([
    cell("", "name", volume.name),
    cell("Owner", "number", `${volume.uid}:${volume.gid}`),
    cell("Mode", "number", volume.mode),
    cell("Used by", "", users(volume.name, volume.pods)),
    cell("Created", "number", moment(volume.createdAt)),
  ])),
  empty("There are no named volumes yet.", "kurma volume create data"), true);

export const secretsView = () => listView("Secrets", "secrets",
  [["Name", "name"], ["Used by"]],
  (secrets) => secrets.map((secret) => tableRow([
    cell("", "name", secret.name),
    cell("Used by", "wide", users(secret.name, secret.pods)),
  ])),
  empty("There are no secrets yet.", "kurma secret create password FILE"), true);

export function eventsView() {
  const body = tableBody();
  const shown = table("Events", [["Time"], ["About", "name"], ["Event"]], body);
  const none = h("div");
  function row(event) {
    const ofPod = event.subject === "pod" || event.subject === "app";
    const there = ofPod && state.pods.some((pod) => pod.uuid === event.id);
    const name = event.subject === "app" && event.pod ? `${event.pod}/${event.name}` : event.name || event.id || "kurmad";
    return tableRow([
      cell("Time", "number", h("time", { datetime: event.at, title: exactly(event.at) }, when(event.at))),
      cell("About", "name", h("span", { class: "tag" }, event.subject), " ", there ? h("a", { href: `#/pod/${event.id}` }, name) : name),
      cell("Event", "wide", event.subject === "app" ? eventText(event).replace(`App ${event.name} `, "") : eventText(event)),
    ]);
  }
  function all() {
    body.replaceChildren(...[...state.events].reverse().map(row));
    shown.hidden = state.events.length === 0;
    none.replaceChildren(...(state.events.length ? [] : [empty("Nothing has happened lately.")]));
  }
  return {
    title: "Events",
    element: [h("section", { class: "card", "aria-label": "Events" }, h("div", { class: "head" }, h("h1", {}, "Events"),
      h("span", { class: "small soft" }, "the newest first")), shown, none)],
    update: (what, event) => {
      if (what !== "event") return;
      body.prepend(row(event));
      while (body.children.length > state.events.length) body.lastChild.remove();
      shown.hidden = false;
      none.replaceChildren();
    },
    begin: all,
  };
}
