// Buttons that start, stop and restart pods and apps, and the question before.

import { act, loadPods, state } from "./data.js";
import { h, toast } from "./dom.js";

const WORDS = {
  start: ["Start", "starting", "was started"],
  stop: ["Stop", "stopping", "was stopped"],
  restart: ["Restart", "restarting", "was restarted"],
};
const running = new Set();
const dialog = document.getElementById("confirm");
/** Takes the answer to the question that was asked last; null: it was answered. */
let answered = null;
dialog.addEventListener("close", () => {
  // The event may come after the next question was asked.
  if (dialog.open) return;
  answered?.(dialog.returnValue === "yes");
  answered = null;
});
const ALIVE = ["starting", "running", "restarting"];

/** Buttons of a pod; none for those who may only look. */
export function podButtons(pod) {
  const possible = { running: ["restart", "stop"], starting: ["stop"], prepared: ["start"], stopped: ["start"], errored: ["start"] };
  return buttons(possible[pod.state] ?? [], pod, pod.displayName, "Pod", pod.uuid);
}

export function appButtons(pod, app) {
  if (pod.state !== "running") return null;
  const possible = ALIVE.includes(app.state) ? ["restart", "stop"] : ["start"];
  return buttons(possible, pod, app.name, "App", `${pod.uuid}/apps/${encodeURIComponent(app.name)}`);
}

function buttons(actions, pod, name, noun, path) {
  if (!state.session.changes) return null;
  return h("div", { class: "row tight" }, actions.map((action) => {
    const [word, doing] = WORDS[action];
    const key = `${path} ${action}`;
    const busy = running.has(path);
    return h("button", {
      type: "button", class: action === "stop" ? "button danger" : "button", "data-key": key, disabled: busy,
      "aria-label": `${word} ${noun.toLowerCase()} ${name}`, title: busy ? `${name} is ${doing}` : null,
      onclick: () => perform(action, pod, name, noun, path),
    }, word);
  }));
}

async function perform(action, pod, name, noun, path) {
  const [word, , done] = WORDS[action];
  const managed = pod.manager !== null;
  if ((action !== "start" || managed) && !(await confirmed(word, noun, name, pod.manager))) return;
  running.add(path);
  refresh(path, true);
  try {
    await act(`${path}/${action}`, managed);
    toast(`${noun} ${name} ${done}`);
  } catch (error) {
    toast(`${noun} ${name}: ${error.message}`, true);
  } finally {
    running.delete(path);
    refresh(path, false);
    loadPods().catch(() => {});
  }
}

function refresh(path, busy) {
  for (const button of document.querySelectorAll("button[data-key]")) {
    if (button.dataset.key.startsWith(`${path} `)) button.disabled = busy;
  }
}

/** Asks, and resolves to whether the person agreed. */
function confirmed(word, noun, name, manager) {
  answered?.(false);
  const yes = document.getElementById("confirm-yes");
  const check = document.getElementById("confirm-check");
  const label = document.getElementById("confirm-managed");
  document.getElementById("confirm-title").textContent = `${word} ${noun.toLowerCase()} ${name}?`;
  document.getElementById("confirm-text").textContent =
    manager === null
      ? word === "Stop" ? "Its programs get a signal, and some seconds to end." : "Its programs end, and begin anew."
      : `${manager} manages this pod, and may undo what you do here.`;
  yes.textContent = word;
  label.hidden = manager === null;
  label.querySelector("span").textContent = `${word} it all the same`;
  check.checked = false;
  yes.disabled = manager !== null;
  check.onchange = () => { yes.disabled = !check.checked; };
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    answered = resolve;
  });
}
