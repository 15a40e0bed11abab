// What the server knows: fetched, followed, and kept for the graphs.

import { speak } from "./dom.js";

/** Samples of a graph, one each two seconds. */
export const SAMPLES = 60;
const EVENTS = 200;
const KINDS = ["cpu", "memory", "received", "sent"];

export const state = {
  session: null, pods: [], left: 0, images: null, networks: null, volumes: null, secrets: null, events: [],
  /** By UUID: the counters of the last measurement; lists of samples. */
  last: new Map(), samples: new Map(), totals: emptySamples(),
};
const listeners = new Set();
let wanted = null;

function emptySamples() {
  return Object.fromEntries(KINDS.map((kind) => [kind, []]));
}

/** @param listener gets what has changed: "pods", "usage", "event", "link", or the name of a list. */
export function listen(listener) {
  listeners.add(listener);
}

function tell(what, value) {
  for (const listener of listeners) listener(what, value);
}

export const pod = (uuid) => state.pods.find((one) => one.uuid === uuid);
export const samplesOf = (uuid) => state.samples.get(uuid) ?? emptySamples();
export const newest = (list) => (list.length ? list.at(-1) : null);

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("kurmad does not answer");
  }
  if (answer.status === 401) location.reload();
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const { message = `status ${answer.status}`, hint = "" } = value.error ?? {};
    throw new Error(hint ? `${message} (${hint})` : message);
  }
  return value;
}

/** Does an action. @param path below /api/pods/. */
export const act = (path, managed) =>
  ask(`/api/pods/${path}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ managed }),
  });

export async function loadPods() {
  const found = await ask("/api/pods");
  state.pods = found.pods;
  state.left = found.left;
  const there = new Set(state.pods.map((one) => one.uuid));
  for (const uuid of state.samples.keys()) if (!there.has(uuid)) state.samples.delete(uuid);
  tell("pods");
}

export async function load(what) {
  state[what] = await ask(`/api/${what}`);
  tell(what);
}

/** Loads the pods again, soon: many events come together. */
function loadSoon() {
  if (wanted === null) {
    wanted = setTimeout(() => {
      wanted = null;
      loadPods().catch(() => {});
    }, 250);
  }
}

export async function begin() {
  state.session = await ask("/api/session");
  await Promise.all([loadPods(), load("events")]);
  follow();
  setInterval(loadSoon, 30000);
}

/** Follows events and figures; the browser itself connects again, unless the server refuses. */
function follow() {
  const source = new EventSource("/api/live");
  source.addEventListener("open", () => {
    tell("link", true);
    loadSoon();
  });
  source.addEventListener("error", () => {
    tell("link", false);
    if (source.readyState === EventSource.CLOSED) setTimeout(followAgain, 3000);
  });
  source.addEventListener("event", (message) => takeEvent(JSON.parse(message.data)));
  source.addEventListener("usage", (message) => takeUsage(JSON.parse(message.data)));
}

async function followAgain() {
  // Without a valid cookie, this leads to the page for the token.
  await ask("/api/session").catch(() => {});
  follow();
}

function takeEvent(event) {
  if (state.events.some((one) => one.seq === event.seq)) return;
  state.events.push(event);
  if (state.events.length > EVENTS) state.events.shift();
  if (event.subject === "pod" || event.subject === "app") loadSoon();
  if (event.subject === "image" && state.images !== null) load("images").catch(() => {});
  if (event.subject === "volume" && state.volumes !== null) load("volumes").catch(() => {});
  if (event.subject === "pod") speak(`Pod ${event.name}: ${event.kind}`);
  tell("event", event);
}

function takeUsage(usage) {
  const sums = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
  for (const [uuid, now] of Object.entries(usage)) {
    const before = state.last.get(uuid);
    const sample = { memory: now.memory, cpu: null, received: null, sent: null };
    if (before !== undefined && now.clock > before.clock) {
      for (const kind of ["cpu", "received", "sent"]) {
        if (now[kind] === null || before[kind] === null) continue;
        // A pod that was started again counts from the beginning.
        sample[kind] = Math.max(0, now[kind] - before[kind]) / (now.clock - before.clock);
      }
    }
    state.last.set(uuid, now);
    const lists = state.samples.get(uuid) ?? emptySamples();
    state.samples.set(uuid, lists);
    for (const kind of KINDS) {
      push(lists[kind], sample[kind]);
      sums[kind] += sample[kind] ?? 0;
    }
  }
  for (const [uuid, lists] of state.samples) {
    if (uuid in usage) continue;
    state.last.delete(uuid);
    for (const kind of KINDS) push(lists[kind], null);
  }
  for (const kind of KINDS) push(state.totals[kind], sums[kind]);
  tell("usage");
}

function push(list, value) {
  list.push(value);
  if (list.length > SAMPLES) list.shift();
}
