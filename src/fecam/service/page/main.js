// The page: connects the inputs, the server and the views.

import * as server from "./api.js";
import { describe, showPredictions } from "./predictions.js";
import { confirmForget, huesOf, showClasses } from "./classes.js";
import { showCurve } from "./curve.js";
import { byId, element } from "./dom.js";
import { Guide } from "./guide.js";
import { nextToUndo, showHistory } from "./history.js";
import { ExampleInput } from "./example_input.js";
import { Holdout } from "./holdout.js";
import { showMap } from "./map.js";
import { classCounts, plural, step } from "./format.js";

const POLL_MS = 5000; // between checks for changes by other clients
const MAX_BATCH = 64; // examples per request
const MAX_BATCH_CHARS = 12_000_000; // base64 characters per request

const state = { model: null, classes: [], steps: [], map: null };
const holdout = new Holdout();
const input = new ExampleInput(showError);
const guide = new Guide(input);

function showStatus(text) {
  byId("status").textContent = text;
  byId("error").textContent = "";
}

function showError(text) {
  byId("error").textContent = text;
  if (text) byId("status").textContent = "";
}

// Runs one action at a time; ignores clicks while it runs.
let busy = false;
async function run(action) {
  if (busy) return false;
  busy = true;
  document.body.classList.add("busy");
  document.body.setAttribute("aria-busy", "true");
  try {
    await action();
    return true;
  } catch (error) {
    showError(error.message);
    return false;
  } finally {
    busy = false;
    document.body.classList.remove("busy");
    document.body.removeAttribute("aria-busy");
  }
}

const labels = () => state.classes.map(({ label }) => String(label));

async function refresh() {
  const [model, { classes }, { steps }, map] = await Promise.all(
    [server.getModel(), server.getClasses(), server.getHistory(), server.getMap()]);
  if (state.model?.name !== model.name) holdout.open(model.name);
  Object.assign(state, { model, classes, steps, map });
  show();
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
  showClasses(classes, hues, forget);
  showHistory(steps);
  showCharts();
  guide.offer(classes.length);
}

function showCharts() {
  if (state.map === null) return;
  showMap(state.map, huesOf(state.classes));
  showCurve(holdout.points);
}

// Measures the accuracy on the held-out examples after each change.
async function measure(what) {
  await refresh();
  const classNames = new Set(labels());
  const usable = holdout.items.filter((item) => item.kind === state.model.kind && classNames.has(item.label));
  if (usable.length === 0) return;
  try {
    const result = await server.evaluate(state.model.kind, usable.map((item) => item.payload), usable.map((item) => item.label));
    if (result.count > 0) holdout.addPoint({ version: result.version, what, accuracy: result.accuracy, count: result.count });
    showCurve(holdout.points);
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

// The input is cleared at once, so that the next example can be drawn, and restored after an error.
async function withExamples(verb, work) {
  const taken = input.take();
  try {
    if (taken.examples.length === 0) throw new Error(`There is no example to ${verb}. Draw, choose or write one above.`);
    return await work(taken.examples);
  } catch (error) {
    taken.restore();
    throw error;
  }
}

async function predict() {
  const reject = byId("reject").value;
  const { examples, answers } = await withExamples("predict", async (examples) => {
    if (state.classes.length === 0) throw new Error("The model has no classes yet. Enter a class and press Teach.");
    showStatus("Predicting …");
    const answers = [];
    for (const batch of batches(examples)) {
      const response = await server.predict(batch[0].kind, payloads(batch),
        { reject: reject ? Number(reject) : null, version: state.model.version });
      answers.push(...response.answers);
    }
    return { examples, answers };
  });
  showPredictions(examples, answers, labels(), correct);
  showStatus(answers.length === 1 ? describe(answers[0]) : `${plural(answers.length, "prediction")} below.`);
  byId("predictions-card").scrollIntoView({ block: "nearest" });
  guide.onPredicted();
}

async function teach() {
  const label = byId("label").value.trim();
  const { count, split, message } = await withExamples("teach", async (examples) => {
    if (!label) {
      byId("label").focus();
      throw new Error("Enter the name of the class.");
    }
    showStatus("Learning …");
    const split = byId("holdout").checked
      ? holdout.split(examples, labels().includes(label))
      : { learn: examples, heldOut: [], counter: holdout.counter };
    const message = await learn(split.learn, label, byId("note").value.trim());
    return { count: examples.length, split, message };
  });
  await holdout.add(split.heldOut, label, split.counter);
  byId("note").value = "";
  const suffix = split.heldOut.length ? ` ${split.heldOut.length} held out.` : "";
  showStatus(`${message}${suffix}`.trim());
  await measure(`${label} (${split.learn.length})`);
  guide.onLearned(label, count);
}

async function learn(examples, label, note = "") {
  const total = { learned: {}, duplicates: 0, unreadable: [] };
  for (const batch of batches(examples)) {
    const result = await server.teach(batch[0].kind, payloads(batch), label, note);
    for (const [name, count] of Object.entries(result.learned)) total.learned[name] = (total.learned[name] ?? 0) + count;
    total.duplicates += Object.values(result.duplicates).reduce((sum, count) => sum + count, 0);
    total.unreadable.push(...result.unreadable);
  }
  return [
    Object.keys(total.learned).length ? `Learned ${classCounts(total.learned)}.` : "",
    total.duplicates ? `Skipped ${plural(total.duplicates, "duplicate")}.` : "",
    total.unreadable.length ? `Not readable: ${total.unreadable.join("; ")}` : "",
  ].filter(Boolean).join(" ");
}

// A correction is never held out.
function correct(example, label) {
  return run(async () => {
    showStatus("Learning …");
    showStatus(await learn([example], label));
    await measure(`${label} (1), corrected`);
  });
}

async function forget(label, count) {
  const chosen = await confirmForget(label, count);
  if (chosen === null) return;
  await run(async () => {
    await server.forget(label, chosen.purge);
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

byId("predict").addEventListener("click", () => run(predict));
byId("teach-form").addEventListener("submit", (event) => {
  event.preventDefault();
  run(teach);
});
byId("undo").addEventListener("click", () => run(undo));
byId("download").addEventListener("click", () => run(download));
byId("holdout-clear").addEventListener("click", () => {
  holdout.clear();
  showCurve(holdout.points);
});

addEventListener("resize", showCharts);

let reachable = true;
server.onReachable((now) => {
  if (now === reachable) return;
  reachable = now;
  byId("banner").hidden = now;
  byId("banner").textContent = now ? "" : "The server does not respond. The page reconnects automatically.";
});

// Other clients may change the model, and the server may restart.
async function poll() {
  if (document.hidden || busy || document.querySelector("dialog[open]")) return;
  try {
    const stale = !reachable || state.model === null;
    const model = await server.getModel(true);
    if (stale || model.version !== state.model.version) await refresh();
  } catch { /* the banner shows it */ }
}

await run(refresh);
setInterval(poll, POLL_MS);
document.addEventListener("visibilitychange", poll);
