// Shows the OpenAPI document of this service; each operation can be tried.

import { byId, element } from "../page/dom.js";

const api = await (await fetch("../openapi.json")).json();
const resolve = (schema) => schema.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema;
const indent = (text) => text.replaceAll("\n", "\n  ");

// A schema as text, such as { step: integer | null }.
function typeOf(schema) {
  schema = resolve(schema);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.anyOf) return [...new Set(schema.anyOf.map(typeOf))].join(" | ");
  if (schema.allOf) return schema.allOf.map(typeOf).join(" and ");
  if (schema.type === "array") return `[${typeOf(schema.items ?? {})}, ...]`;
  if (schema.additionalProperties) return `{ [label]: ${typeOf(schema.additionalProperties)} }`;
  if (!schema.properties) return schema.type ?? "any";
  const lines = Object.entries(schema.properties).map(([name, field]) => {
    const optional = (schema.required ?? []).includes(name) ? "" : "?";
    const text = resolve(field).description;
    return `${name}${optional}: ${indent(typeOf(field))},${text ? `  // ${text.replaceAll("\n", " ")}` : ""}`;
  });
  return `{\n  ${lines.map(indent).join("\n  ")}\n}`;
}

// A value that follows a schema: the required fields only.
function exampleOf(schema) {
  schema = resolve(schema);
  if (schema.examples) return schema.examples[0];
  if ("default" in schema) return schema.default;
  if (schema.anyOf) return exampleOf(schema.anyOf[0]);
  if (schema.type === "array") return [exampleOf(schema.items)];
  if (schema.type === "integer") return 1;
  if (schema.type !== "object") return "text";
  const required = (schema.required ?? []).map((name) => [name, exampleOf(schema.properties[name])]);
  return Object.fromEntries(required);
}

// Fields for a body of a media type, and a function that returns the body.
function bodyFields(media, { schema }) {
  if (media === "application/json") {
    const text = element("textarea", { rows: 6, spellcheck: "false" });
    text.value = JSON.stringify(exampleOf(schema), null, 1);
    const types = schema.anyOf.map((option) => element("pre", {}, typeOf(option)));
    return [[element("label", {}, "Body", text), ...types], () => text.value];
  }
  if (media === "application/octet-stream") {
    const input = element("input", { type: "file" });
    return [[element("label", {}, "File of little-endian 32-bit floats", input)], () => input.files[0]];
  }
  const inputs = Object.keys(schema.properties).map((name) => [
    name, element("input", name === "files" ? { type: "file", multiple: true } : { type: "text" }),
  ]);
  return [inputs.map(([name, input]) => element("label", {}, name, input)), () => {
    const form = new FormData();
    for (const [name, input] of inputs) {
      if (input.type === "file") for (const file of input.files) form.append(name, file);
      else if (input.value) form.append(name, input.value);
    }
    return form;
  }];
}

async function show(output, method, url, headers, body) {
  const token = byId("token").value.trim();
  if (token) headers.Authorization = `Bearer ${token}`;
  try {
    const response = await fetch(url, { method, headers, body, cache: "no-store" });
    const isText = /json|text/.test(response.headers.get("Content-Type"));
    const text = isText ? await response.text() : `${(await response.blob()).size} bytes`;
    output.textContent = `${response.status} ${response.statusText}\n${text}`;
  } catch (error) {
    output.textContent = `The server does not respond: ${error.message}`;
  }
  output.hidden = false;
}

function operation(method, path, { summary, description, parameters, requestBody, responses }) {
  const inputs = parameters.map((parameter) => [parameter, element("input", { type: "text" })]);
  const output = element("pre", { class: "response", role: "status", hidden: true });
  const fields = element("div");
  const media = element("select", {}, ...Object.keys(requestBody?.content ?? {}).map(
    (name) => element("option", {}, name)));
  let body = () => undefined;
  const choose = () => {
    const [nodes, read] = bodyFields(media.value, requestBody.content[media.value]);
    fields.replaceChildren(...nodes);
    body = read;
  };
  if (requestBody) {
    media.addEventListener("change", choose);
    choose();
  }
  const send = () => {
    const headers = {}, query = new URLSearchParams();
    let place = path;
    for (const [{ name, in: where }, { value }] of inputs) {
      if (where === "path") place = place.replace(`{${name}}`, encodeURIComponent(value));
      else if (value && where === "query") query.set(name, value);
      else if (value) headers[name] = value;
    }
    // The browser sets the type of a form, with its boundary.
    if (requestBody && !media.value.startsWith("multipart")) headers["Content-Type"] = media.value;
    return show(output, method.toUpperCase(), `..${place}${query.size ? `?${query}` : ""}`, headers, body());
  };
  const results = Object.entries(responses).map(([status, { description: text, content }]) => {
    const { schema } = Object.values(content)[0];
    const isError = schema.$ref?.endsWith("/Error");
    return element("div", {}, element("p", {}, element("code", {}, status), ` ${text}`),
      isError ? null : element("pre", {}, typeOf(schema)));
  });
  return element("details", { class: "operation card", "data-operation": `${method.toUpperCase()} ${path}` },
    element("summary", {}, element("span", { class: "method" }, method.toUpperCase()),
      element("code", {}, path), ` ${summary}`),
    element("p", {}, description),
    ...inputs.map(([{ name, in: where, schema }, input]) =>
      element("label", {}, `${name} (${where}): ${typeOf(schema)}`, input)),
    requestBody ? element("label", {}, "Content type", media) : null, fields,
    element("button", { type: "button", class: "main", onclick: send }, "Send"), output,
    element("h2", {}, "Responses"), ...results);
}

byId("token").form.addEventListener("submit", (event) => event.preventDefault());
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, item] of Object.entries(methods)) {
    byId("operations").append(operation(method, path, item));
  }
}
