// The page: connects the inputs, the server and the views.

import * as server from "./api.js";
import { answerClass, answerParts, describe, showPredictions } from "./predictions.js";
import { confirmForget, huesOf, showClasses } from "./classes.js";
import { showCurve } from "./curve.js";
import { byId, element } from "./dom.js";
import { Guide } from "./guide.js";
import { nextToUndo, showHistory } from "./history.js";
import { ExampleInput } from "./example_input.js";
import { Holdout } from "./holdout.js";
import { Live } from "./live.js";
import { showMap } from "./map.js";
import { Queue } from "./queue.js";
import { Unknowns } from "./unknowns.js";
import { showWhy } from "./why.js";
import { Thumbnails } from "./thumbnails.js";
import { classCounts, plural, step } from "./format.js";

const POLL_MS = 5000; // between checks for changes by other clients
const MAX_BATCH = 64; // examples per request
const MAX_BATCH_CHARS = 12_000_000; // base64 characters per request
const MAX_CHIPS = 8; // classes with a button below the field
const SETTLED_MS = 1000; // after which an answer is read out

let settled = null; // timer
let shown = null; // example of the answer that is shown, and whether it was rejected
const state = { model: null, classes: [], steps: [], map: null };
const holdout = new Holdout();
const thumbnails = new Thumbnails();
const queue = new Queue(showQueue, (error) => showError(error.message));
const live = new Live({ current: currentExample, ask: askLive, show: showLive, hide: hideLive });
const input = new ExampleInput({ showError, onChange: () => live.changed(), onTake: () => live.clear() });
const guide = new Guide(input);
const unknowns = new Unknowns({ discover, teach: teachGroup, classNames: labels });

function showStatus(text) {
  byId("status").textContent = text;
}

function showError(text) {
  byId("error").textContent = text;
  if (text) byId("status").textContent = "";
}

function showQueue(count) {
  byId("waiting").textContent = count > 1 ? `${count - 1} waiting` : "";
  if (count) document.body.setAttribute("aria-busy", "true");
  else document.body.removeAttribute("aria-busy");
}

const countOf = (label) => state.classes.find((record) => String(record.label) === label)?.count ?? 0;

function labels() {
  return state.classes.map(({ label }) => String(label));
}

async function refresh() {
  const [model, { classes }, { steps }, map] = await Promise.all(
    [server.getModel(), server.getClasses(), server.getHistory(), server.getMap()]);
  if (state.model?.name !== model.name) {
    holdout.open(model.name);
    thumbnails.open(model.name);
  }
  const changed = state.model?.version !== model.version;
  Object.assign(state, { model, classes, steps, map });
  show();
  if (changed) live.changed();
}

const modelName = () => state.model.name.replace(/\.fecam$/, "");

function show() {
  const { model, classes, steps } = state;
  byId("model-name").textContent = modelName();
  document.title = `Teach ${modelName()}`;
  byId("model-line").textContent = classes.length
    ? `${plural(classes.length, "class", "classes")} from ${plural(model.samples, "example")}`
    : "No classes yet";
  const hues = huesOf(classes);
  input.restrictTo(model.kind);
  showClasses(classes, hues, thumbnails.byClass(steps), forget);
  showChips();
  showHistory(steps);
  unknowns.update(steps);
  showCharts();
  guide.offer(classes.length);
}

function showCharts() {
  if (state.map === null) return;
  showMap(state.map, huesOf(state.classes));
  showCurve(holdout.points, holdout.items.length);
}

// A button per class teaches the current example as this class. The order is that of the classes,
// so that no button moves below the pointer.
function showChips() {
  const latest = [...state.classes].sort((a, b) => (a.changed < b.changed ? 1 : -1)).slice(0, MAX_CHIPS);
  const chosen = state.classes.filter((record) => latest.includes(record)).map(({ label }) => String(label));
  const existing = [...byId("chips").children].map((button) => button.textContent);
  if (existing.join("\n") === chosen.join("\n")) return;
  byId("chips").replaceChildren(...chosen.map((label) => element("button",
    { type: "button", dir: "auto", title: label, "aria-label": `Teach it as ${label}`, onclick: () => teach(label) }, label)));
}

// Measures the accuracy on the held-out examples after each change.
async function measure(what) {
  await refresh();
  if (queue.count > 1) return; // the last of several changes measures
  const classNames = new Set(labels());
  const usable = holdout.items.filter((item) => item.kind === state.model.kind && classNames.has(item.label));
  if (usable.length === 0) return;
  try {
    const result = await server.evaluate(state.model.kind, usable.map((item) => item.payload), usable.map((item) => item.label));
    if (result.count > 0) holdout.addPoint({ version: result.version, what, accuracy: result.accuracy, count: result.count });
    showCharts();
  } catch (error) {
    showError(`The change was saved, but the accuracy could not be measured: ${error.message}`);
  }
}

function* batches(examples) {
  let batch = [];
  let chars = 0;
  for (const example of examples) {
    const length = example.payload.length;
    if (batch.length && (batch.length === MAX_BATCH || chars + length > MAX_BATCH_CHARS)) {
      yield batch;
      [batch, chars] = [[], 0];
    }
    batch.push(example);
    chars += length;
  }
  if (batch.length) yield batch;
}

const payloads = (examples) => examples.map((example) => example.payload);

// Takes the examples at the click, so that the next one can be drawn, and queues the work; an error
// brings them back. Without an example, a second click on the same button does nothing.
function withExamples(verb, check, work) {
  let taken;
  try {
    if (input.examples().length === 0) {
      if (queue.count === 0) throw new Error(`There is no example to ${verb}. Draw, choose or write one above.`);
      return;
    }
    check();
    taken = input.take();
  } catch (error) {
    showError(error.message);
    return;
  }
  showError("");
  work(taken);
}

// Restores the examples if the promise is rejected.
const orRestore = (taken, promise) => promise.catch((error) => {
  taken.restore();
  throw error;
});

function predict() {
  withExamples("predict", () => {
    if (state.classes.length === 0 && queue.count === 0) throw new Error("The model has no classes yet. Enter a class and press Teach.");
  }, (taken) => queue.add(async () => {
    showStatus("Predicting …");
    const { examples } = taken;
    const answers = await orRestore(taken, ask(examples));
    showPredictions(examples, answers, labels(), { correct, why });
    const rejected = examples.filter((_, i) => !answers[i].error && answers[i].label === null);
    if (rejected.length) unknowns.add(rejected);
    showStatus(answers.length === 1 ? describe(answers[0]) : `${plural(answers.length, "prediction")} below.`);
    if (answers.length > 1) byId("tab-answers").click();
    guide.onPredicted();
  }));
}

async function ask(examples, options = {}) {
  const reject = byId("reject").value;
  const answers = [];
  for (const batch of batches(examples)) {
    const response = await server.predict(batch[0].kind, payloads(batch),
      { reject: reject ? Number(reject) : null, version: state.model.version, ...options });
    answers.push(...response.answers);
  }
  return answers;
}

function currentExample() {
  return state.classes.length ? input.current(state.model.width) : null;
}

async function askLive(example) {
  return (await ask([example], { quiet: true }))[0];
}

function showLive(example, answer) {
  byId("live-none").hidden = true;
  shown = answer.error ? null : [example, answer.label === null];
  byId("live-why").hidden = shown === null;
  byId("live-keep").hidden = shown === null || answer.label !== null;
  byId("live-answer").className = answerClass(answer);
  byId("live-answer").replaceChildren(
    element("div", {}, ...answerParts(answer)),
    example.picture === null ? "" : element("img", { src: example.picture, alt: example.name }),
  );
  clearTimeout(settled);
  settled = setTimeout(() => { byId("live-status").textContent = describe(answer); }, SETTLED_MS);
  guide.onPredicted();
}

function hideLive() {
  clearTimeout(settled);
  byId("live-none").hidden = false;
  byId("live-why").hidden = byId("live-keep").hidden = true;
  byId("live-answer").replaceChildren();
}

function teach(label) {
  const note = byId("note").value.trim();
  withExamples("teach", () => {
    if (label) return;
    byId("label").focus();
    throw new Error("Enter the name of the class.");
  }, (taken) => {
    byId("note").value = "";
    const { examples } = taken;
    const takeBack = guide.onTaught(label, examples.length);
    queue.add(async () => {
      showStatus("Learning …");
      const split = byId("holdout").checked
        ? holdout.split(examples, label, countOf(label))
        : { learn: examples, heldOut: [], counter: holdout.counter };
      const { message } = await orRestore(taken, learn(split.learn, label, note)).catch((error) => {
        takeBack();
        throw error;
      });
      await holdout.add(split.heldOut, label, split.counter);
      const suffix = split.heldOut.length ? ` ${split.heldOut.length} held out.` : "";
      showStatus(`${message}${suffix}`.trim());
      await measure(`${label} (${split.learn.length})`);
    });
  });
}

async function learn(examples, label, note = "") {
  const total = { learned: {}, duplicates: 0, unreadable: [], step: null };
  for (const batch of batches(examples)) {
    const result = await server.teach(batch[0].kind, payloads(batch), label, note);
    for (const [name, count] of Object.entries(result.learned)) total.learned[name] = (total.learned[name] ?? 0) + count;
    total.duplicates += Object.values(result.duplicates).reduce((sum, count) => sum + count, 0);
    total.unreadable.push(...result.unreadable);
    total.step = result.step ?? total.step;
    if (result.step !== null) await thumbnails.add(batch, label, result.step);
  }
  const message = [
    Object.keys(total.learned).length ? `Learned ${classCounts(total.learned)}.` : "",
    total.duplicates ? `Skipped ${plural(total.duplicates, "duplicate")}.` : "",
    total.unreadable.length ? `Not readable: ${total.unreadable.join("; ")}` : "",
  ].filter(Boolean).join(" ");
  return { message, step: total.step };
}

// A correction is never held out.
function correct(example, label) {
  showError("");
  return queue.add(async () => {
    showStatus("Learning …");
    showStatus((await learn([example], label)).message);
    await measure(`${label} (1), corrected`);
  });
}

// An example that fits no class goes to the tray of unknown ones.
function keep() {
  withExamples("keep", () => {}, ({ examples }) => unknowns.add(examples));
}

function discover(examples) {
  showError("");
  queue.add(async () => {
    showStatus("Grouping …");
    unknowns.showGroups(examples, await server.discover(examples[0].kind, payloads(examples)));
    showStatus("");
  });
}

// Resolves to the step of the history, or null if the lesson failed.
async function teachGroup(examples, label) {
  let learned = null;
  showError("");
  await queue.add(async () => {
    showStatus("Learning …");
    const { message, step: number } = await learn(examples, label);
    learned = number;
    showStatus(message);
    await measure(`${label} (${examples.length}), a group`);
  });
  return learned;
}

async function why(example, rejected) {
  try {
    showWhy(example, await server.explain(example.kind, example.payload), rejected);
  } catch (error) {
    showError(error.message);
  }
}

async function forget(label, count) {
  const chosen = await confirmForget(label, count);
  if (chosen === null) return;
  showError("");
  await queue.add(async () => {
    await server.forget(label, chosen.purge);
    if (chosen.purge) thumbnails.drop(label);
    showStatus(`Forgot ${label}.${chosen.purge ? "" : " This can be undone."}`);
    await measure(`forgot ${label}`);
    byId("undo").focus({ preventScroll: true }); // the button of the class is gone
  });
}

async function undo() {
  const expected = nextToUndo(state.steps);
  await refresh();
  if (nextToUndo(state.steps)?.number !== expected?.number) {
    throw new Error("The model was changed by another client. The button now shows the step that an undo reverts.");
  }
  const { undone } = await server.undo();
  showStatus(`Undone: ${undone.map(step).join(", ")}.`);
  await measure("undo");
}

async function download() {
  const file = await server.getFile();
  const link = element("a", { href: URL.createObjectURL(file), download: `${modelName()}.fecam` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function queued(action) {
  showError("");
  queue.add(action);
}

byId("predict").addEventListener("click", predict);
byId("teach-form").addEventListener("submit", (event) => {
  event.preventDefault();
  teach(byId("label").value.trim());
});
byId("live-why").addEventListener("click", () => why(...shown));
byId("live-keep").addEventListener("click", keep);
byId("undo").addEventListener("click", () => queued(undo));
byId("download").addEventListener("click", () => queued(download));
byId("holdout-clear").addEventListener("click", () => queued(() => {
  holdout.clear();
  showCharts();
}));
byId("reject").addEventListener("change", () => live.changed());

// A camera picture changes all the time.
setInterval(() => { if (input.source === "camera" && input.camera.on) live.changed(); }, 100);

addEventListener("resize", showCharts);
for (const tab of document.querySelectorAll("input[name=tab]")) tab.addEventListener("change", showCharts); // their width
addEventListener("beforeunload", (event) => { if (queue.count) event.preventDefault(); });

let reachable = true;
server.onReachable((now) => {
  if (now === reachable) return;
  reachable = now;
  byId("banner").hidden = now;
  byId("banner").textContent = now ? "" : "The server does not respond. The page reconnects automatically.";
});

// Other clients may change the model, and the server may restart.
async function poll() {
  if (document.hidden || queue.count || document.querySelector("dialog[open]")) return;
  try {
    const stale = !reachable || state.model === null;
    const model = await server.getModel(true);
    if (stale || model.version !== state.model.version) await refresh();
  } catch { /* the banner shows it */ }
}

await queue.add(refresh);
setInterval(poll, POLL_MS);
document.addEventListener("visibilitychange", poll);
