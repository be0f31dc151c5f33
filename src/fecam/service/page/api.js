// Calls to the server, with retries while it restarts.

import { byId, randomKey } from "./dom.js";

const TOKEN = "fecam.token";
const RETRY_TIMEOUT = 60_000; // ms: enough for a restart of the server
const TOKEN_REQUIRED = "This server requires a token. Its operator can give you one.";
const TOKEN_INVALID = "This token is not valid. Enter another one.";

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

let reportReachable = () => {};
export const onReachable = (callback) => { reportReachable = callback; };

let pendingToken = null;

// Not a submit button, because Enter would press it.
byId("token-cancel").addEventListener("click", () => byId("token-dialog").close("cancel"));

// One dialog for all calls that are rejected at the same time.
function askForToken(message) {
  pendingToken ??= new Promise((resolve) => {
    const dialog = byId("token-dialog");
    byId("token-message").textContent = message;
    byId("token").value = "";
    dialog.returnValue = "cancel";
    dialog.addEventListener("close", () => {
      const token = byId("token").value.trim();
      byId("token").value = "";
      pendingToken = null;
      if (dialog.returnValue === "use" && token) sessionStorage.setItem(TOKEN, token);
      resolve(dialog.returnValue === "use" && token !== "");
    }, { once: true });
    dialog.showModal();
  });
  return pendingToken;
}

async function toError(response) {
  try {
    const { error } = await response.json();
    return new Error(error.message);
  } catch {
    return new Error(`The server returned status ${response.status}.`);
  }
}

function send(method, path, body, key, token) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (key) headers["Idempotency-Key"] = key;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
}

// `retry`: the call may be repeated, because it changes nothing or has an idempotency key.
async function call(method, path, { body, key, retry = method === "GET", quiet = false } = {}) {
  const deadline = Date.now() + RETRY_TIMEOUT;
  for (let attempt = 0; ; attempt += 1) {
    const mayRetry = retry && !quiet && Date.now() < deadline;
    const token = sessionStorage.getItem(TOKEN);
    let response;
    try {
      response = await send(method, path, body, key, token);
    } catch {
      reportReachable(false);
      if (!mayRetry) throw new Error("The server does not respond. Is it still running?");
      await sleep(Math.min(0.25 * 2 ** attempt, 2));
      continue;
    }
    reportReachable(true);
    if (response.ok) return response;
    const error = await toError(response);
    if (response.status === 401 && !quiet) {
      if (token !== sessionStorage.getItem(TOKEN)) continue; // another call has set a new one
      sessionStorage.removeItem(TOKEN);
      if (await askForToken(token ? TOKEN_INVALID : TOKEN_REQUIRED)) continue;
      throw new Error("This server requires a token. Reload the page to enter one.");
    }
    if ((response.status === 429 || response.status === 503) && mayRetry) {
      await sleep(Math.min(Number(response.headers.get("Retry-After")) || 1, 10));
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
  json("POST", "v1/teach", { body: { [kind]: payloads, label, note }, key: randomKey(), retry: true });

export const predict = (kind, payloads, { top = 5, reject = null, version = null, quiet = false } = {}) =>
  json("POST", "v1/predict", { body: { [kind]: payloads, top, reject, min_version: version }, retry: true, quiet });

// Calls that change nothing.
export const explain = async (kind, payload) =>
  (await json("POST", "v1/explain", { body: { [kind]: [payload] }, retry: true })).answers[0];

export const discover = (kind, payloads) =>
  json("POST", "v1/discover", { body: { [kind]: payloads }, retry: true });

export const evaluate = (kind, payloads, labels) =>
  json("POST", "v1/evaluate", { body: { [kind]: payloads, labels }, retry: true });

export const undo = () => json("POST", "v1/undo", { body: { steps: 1 } });

export const forget = (label, purge) =>
  json("DELETE", `v1/classes/${encodeURIComponent(label)}?purge=${purge}`);

export const getFile = async () => (await call("GET", "v1/model/file")).blob();
