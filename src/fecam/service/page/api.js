// The server: one function a call, errors in words, and patience while it restarts.

import { byId, randomKey } from "./dom.js";

const TOKEN = "fecam.token";
const PATIENCE = 60_000; // ms: a server that is started anew is back by then
const WHO = "This server asks who you are. Whoever runs it can give you a token.";
const UNKNOWN = "The server does not know this token. Give another one.";

export class ServerError extends Error {
  constructor(message, status = 0, code = "unreachable") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

let listener = () => {};
export const onReach = (callback) => { listener = callback; };

let asking = null;

// A button of the kind "submit" would be what Enter presses.
byId("token-cancel").addEventListener("click", () => byId("token-dialog").close("cancel"));

// One dialog for all calls that are turned away at the same moment.
function askForToken(message) {
  asking ??= new Promise((answer) => {
    const dialog = byId("token-dialog");
    byId("token-said").textContent = message;
    byId("token").value = "";
    dialog.returnValue = "cancel";
    dialog.addEventListener("close", () => {
      const given = byId("token").value.trim();
      byId("token").value = "";
      asking = null;
      if (dialog.returnValue === "use" && given) sessionStorage.setItem(TOKEN, given);
      answer(dialog.returnValue === "use" && given !== "");
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

async function explained(response) {
  try {
    const { error } = await response.json();
    return new ServerError(error.message, response.status, error.code);
  } catch {
    return new ServerError(`The server answered ${response.status} without a word.`, response.status, "");
  }
}

function send(method, path, body, key, token) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (key) headers["Idempotency-Key"] = key;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
}

// `again`: the call may be repeated without harm, because it changes nothing or has a key.
async function call(method, path, { body, key, again = method === "GET", quiet = false } = {}) {
  const until = Date.now() + PATIENCE;
  for (let attempt = 0; ; attempt += 1) {
    const patient = again && !quiet && Date.now() < until;
    const token = sessionStorage.getItem(TOKEN);
    let response;
    try {
      response = await send(method, path, body, key, token);
    } catch {
      listener(false);
      if (!patient) throw new ServerError("The server does not answer. Is it still running?");
      await wait(Math.min(0.25 * 2 ** attempt, 2));
      continue;
    }
    listener(true);
    if (response.ok) return response;
    const error = await explained(response);
    if (response.status === 401 && !quiet) {
      if (token !== sessionStorage.getItem(TOKEN)) continue; // another call got a new one
      sessionStorage.removeItem(TOKEN);
      if (await askForToken(token ? UNKNOWN : WHO)) continue;
      throw new ServerError("Without a token this server says nothing. Reload the page to give one.", 401, error.code);
    }
    if ((response.status === 429 || response.status === 503) && patient) {
      await wait(Math.min(Number(response.headers.get("Retry-After")) || 1, 10));
      continue;
    }
    throw error;
  }
}

const json = async (...request) => (await call(...request)).json();

export const getModel = (quiet = false) => json("GET", "v1/model", { quiet });
export const getClasses = () => json("GET", "v1/classes");
export const getHistory = () => json("GET", "v1/history");
export const getMap = () => json("GET", "v1/map");

export const teach = (kind, payloads, label, note = "") =>
  json("POST", "v1/teach", { body: { [kind]: payloads, label, note }, key: randomKey(), again: true });

export const predict = (kind, payloads, { top = 5, reject = null, version = null } = {}) =>
  json("POST", "v1/predict", { body: { [kind]: payloads, top, reject, min_version: version }, again: true });

export const evaluate = (kind, payloads, labels) =>
  json("POST", "v1/evaluate", { body: { [kind]: payloads, labels }, again: true });

export const undo = () => json("POST", "v1/undo", { body: { steps: 1 } });

export const forget = (label, purge) =>
  json("DELETE", `v1/classes/${encodeURIComponent(label)}?purge=${purge}`);

export const getFile = async () => (await call("GET", "v1/model/file")).blob();
