// The page: what the person does, what the server says, and the parts that show it.

import * as server from "./api.js";
import { said as answerSaid, showAnswers } from "./answers.js";
import { confirmForget, huesOf, showClasses } from "./classes.js";
import { showCurve } from "./curve.js";
import { byId, make } from "./dom.js";
import { Guide } from "./guide.js";
import { nextToUndo, showHistory } from "./history.js";
import { Intake } from "./intake.js";
import { Kept } from "./kept.js";
import { showMap } from "./map.js";
import { counted, many, step } from "./words.js";

const PULSE = 5000; // ms between looks for what others have taught
const BATCH = 64; // examples a request
const BATCH_LETTERS = 12_000_000; // base64 letters a request

const state = { model: null, classes: [], steps: [], map: null };
const kept = new Kept();
const intake = new Intake(complain);
const guide = new Guide(intake);

// ---------------------------------------------------------------------- saying

function say(text) {
  byId("said").textContent = text;
  byId("wrong").textContent = "";
}

function complain(text) {
  byId("wrong").textContent = text;
  if (text) byId("said").textContent = "";
}

// One thing at a time: a second click while the first is under way is a slip of the hand.
let busy = false;
async function during(work) {
  if (busy) return false;
  busy = true;
  document.body.classList.add("busy");
  document.body.setAttribute("aria-busy", "true");
  try {
    await work();
    return true;
  } catch (error) {
    complain(error.message);
    return false;
  } finally {
    busy = false;
    document.body.classList.remove("busy");
    document.body.removeAttribute("aria-busy");
  }
}

// ---------------------------------------------------------------------- what there is

const labels = () => state.classes.map(({ label }) => String(label));

async function refresh() {
  const [model, { classes }, { steps }, map] = await Promise.all(
    [server.getModel(), server.getClasses(), server.getHistory(), server.getMap()]);
  if (state.model?.name !== model.name) kept.open(model.name);
  Object.assign(state, { model, classes, steps, map });
  show();
}

const title = () => state.model.name.replace(/\.fecam$/, "");

function show() {
  const { model, classes, steps } = state;
  byId("model-name").textContent = title();
  document.title = `Teach ${title()}`;
  byId("model-line").textContent = classes.length
    ? `It knows ${many(classes.length, "class", "classes")} from ${many(model.samples, "example")}.`
    : "It knows nothing yet.";
  const hues = huesOf(classes);
  intake.allow(model.kind);
  showClasses(classes, hues, forget);
  showHistory(steps);
  showDrawings();
  guide.offer(classes.length);
}

function showDrawings() {
  if (state.map === null) return;
  showMap(state.map, huesOf(state.classes));
  showCurve(kept.points);
}

// After each change: is it still right on what was kept back?
async function measure(what) {
  await refresh();
  const known = new Set(labels());
  const usable = kept.items.filter((item) => item.kind === state.model.kind && known.has(item.label));
  if (usable.length === 0) return;
  try {
    const found = await server.evaluate(state.model.kind, usable.map((item) => item.payload), usable.map((item) => item.label));
    if (found.count > 0) kept.add({ version: found.version, what, accuracy: found.accuracy, count: found.count });
    showCurve(kept.points);
  } catch (error) {
    complain(`The lesson is taught, but it could not be measured: ${error.message}`);
  }
}

// ---------------------------------------------------------------------- asking and teaching

function* batches(examples) {
  let batch = [];
  let letters = 0;
  for (const example of examples) {
    const length = example.payload.length;
    if (batch.length && (batch.length === BATCH || letters + length > BATCH_LETTERS)) {
      yield batch;
      [batch, letters] = [[], 0];
    }
    batch.push(example);
    letters += length;
  }
  if (batch.length) yield batch;
}

const payloads = (examples) => examples.map((example) => example.payload);

// What is given leaves the sheet at once, so that the next can be drawn; if it is in vain, it comes back.
async function withExamples(what, work) {
  const given = intake.take();
  try {
    if (given.examples.length === 0) throw new Error(`There is nothing to ${what} yet. Draw, choose or write something above.`);
    return await work(given.examples);
  } catch (error) {
    given.back();
    throw error;
  }
}

async function ask() {
  const reject = byId("reject").value;
  const { examples, answers } = await withExamples("ask about", async (examples) => {
    if (state.classes.length === 0) throw new Error("It knows nothing yet. Say what this is, and press Teach.");
    say("Looking …");
    const answers = [];
    for (const batch of batches(examples)) {
      const found = await server.predict(batch[0].kind, payloads(batch),
        { reject: reject ? Number(reject) : null, version: state.model.version });
      answers.push(...found.answers);
    }
    return { examples, answers };
  });
  showAnswers(examples, answers, labels(), correct);
  say(answers.length === 1 ? answerSaid(answers[0]) : `${many(answers.length, "answer")} below.`);
  byId("answers-card").scrollIntoView({ block: "nearest" });
  guide.asked();
}

async function teach() {
  const label = byId("label").value.trim();
  const { count, split, lesson } = await withExamples("teach", async (examples) => {
    if (!label) {
      byId("label").focus();
      throw new Error("What is it? Give the class a name.");
    }
    say("Teaching …");
    const split = byId("keep").checked
      ? kept.split(examples, labels().includes(label))
      : { taught: examples, held: [], given: kept.given };
    const lesson = await lessons(split.taught, label, byId("note").value.trim());
    return { count: examples.length, split, lesson };
  });
  await kept.take(split.held, label, split.given);
  byId("note").value = "";
  const back = split.held.length ? ` ${split.held.length} kept back, to measure.` : "";
  say(`${lesson}${back}`.trim());
  await measure(`${label} (${split.taught.length})`);
  guide.taught(label, count);
}

async function lessons(examples, label, note = "") {
  const total = { learned: {}, duplicates: 0, unreadable: [] };
  for (const batch of batches(examples)) {
    const done = await server.teach(batch[0].kind, payloads(batch), label, note);
    for (const [name, count] of Object.entries(done.learned)) total.learned[name] = (total.learned[name] ?? 0) + count;
    total.duplicates += Object.values(done.duplicates).reduce((sum, count) => sum + count, 0);
    total.unreadable.push(...done.unreadable);
  }
  return [
    Object.keys(total.learned).length ? `Taught ${counted(total.learned)}.` : "",
    total.duplicates ? `${many(total.duplicates, "example")} it knew before.` : "",
    total.unreadable.length ? `Not readable: ${total.unreadable.join("; ")}` : "",
  ].filter(Boolean).join(" ");
}

// A correction is always taught: it is too good an example to be kept back.
function correct(example, label) {
  return during(async () => {
    say("Teaching …");
    say(await lessons([example], label));
    await measure(`${label} (1), corrected`);
  });
}

// ---------------------------------------------------------------------- taking back

async function forget(label, count) {
  const chosen = await confirmForget(label, count);
  if (chosen === null) return;
  await during(async () => {
    await server.forget(label, chosen.purge);
    say(`Forgot ${label}.${chosen.purge ? "" : " An undo brings it back."}`);
    await measure(`forgot ${label}`);
    byId("undo").focus({ preventScroll: true }); // its button is gone; this is the way back
  });
}

async function undo() {
  const shown = nextToUndo(state.steps);
  await refresh();
  if (nextToUndo(state.steps)?.number !== shown?.number) {
    throw new Error("Meanwhile something else was taught. The button says what an undo would take back now.");
  }
  const { undone } = await server.undo();
  say(`Taken back: ${undone.map(step).join(", ")}.`);
  await measure("an undo");
}

async function download() {
  const file = await server.getFile();
  const link = make("a", { href: URL.createObjectURL(file), download: `${title()}.fecam` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// ---------------------------------------------------------------------- beginning

byId("ask").addEventListener("click", () => during(ask));
byId("teach-form").addEventListener("submit", (event) => {
  event.preventDefault();
  during(teach);
});
byId("undo").addEventListener("click", () => during(undo));
byId("download").addEventListener("click", () => during(download));
byId("kept-clear").addEventListener("click", () => {
  kept.clear();
  showCurve(kept.points);
});

addEventListener("resize", showDrawings);

let reached = true;
server.onReach((now) => {
  if (now === reached) return;
  reached = now;
  byId("banner").hidden = now;
  byId("banner").textContent = now ? "" : "The server does not answer. This page goes on as soon as it does.";
});

// Others may teach the same model, and a server may be started anew.
async function pulse() {
  if (document.hidden || busy || document.querySelector("dialog[open]")) return;
  try {
    const waited = !reached || state.model === null;
    const model = await server.getModel(true);
    if (waited || model.version !== state.model.version) await refresh();
  } catch { /* the banner says it */ }
}

await during(refresh);
setInterval(pulse, PULSE);
document.addEventListener("visibilitychange", pulse);
