// Examples: what a person gives, and how it is sent.
//
// An example is {kind, payload, picture, name}: payload as the server takes it (base64, a text or a
// row of numbers), picture the address of something to look at, or null.

const LARGE = 1_000_000; // bytes: larger files are made smaller before they travel
const SIDE = 1024; // px
const KEPT_SIDE = 320; // px, for what is kept back: the browser's store is small

export const image = (payload, type, name) =>
  ({ kind: "images", payload, picture: `data:${type};base64,${payload}`, name });

export const text = (payload) => ({ kind: "texts", payload, picture: null, name: payload });

export const row = (payload) => ({ kind: "features", payload, picture: null, name: payload.join(", ") });

const base64 = (blob) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => failed(new Error(`${blob.name ?? "A file"} cannot be read.`));
  reader.readAsDataURL(blob);
});

async function smaller(blob, side) {
  const bitmap = await createImageBitmap(blob);
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
  const sheet = Object.assign(document.createElement("canvas"), {
    width: Math.max(1, Math.round(bitmap.width * scale)),
    height: Math.max(1, Math.round(bitmap.height * scale)),
  });
  const context = sheet.getContext("2d");
  context.fillStyle = "#ffffff"; // what is transparent becomes white, as it does on the server
  context.fillRect(0, 0, sheet.width, sheet.height);
  context.drawImage(bitmap, 0, 0, sheet.width, sheet.height);
  return new Promise((done) => sheet.toBlob(done, "image/jpeg", 0.92));
}

// What the browser cannot read, the server may: then the file travels as it is.
export async function fromFile(file) {
  const name = file.name || "picture";
  if (file.size > LARGE) {
    try {
      return image(await base64(await smaller(file, SIDE)), "image/jpeg", name);
    } catch { /* as it is */ }
  }
  return image(await base64(file), file.type || "image/png", name);
}

// A copy to be kept in the browser.
export async function keepable(example) {
  if (example.kind !== "images" || example.payload.length < 40_000) return example.payload;
  try {
    const bytes = Uint8Array.from(atob(example.payload), (letter) => letter.charCodeAt(0));
    return await base64(await smaller(new Blob([bytes]), KEPT_SIDE));
  } catch {
    return null;
  }
}

export const texts = (value) => value.split("\n").map((line) => line.trim()).filter(Boolean).map(text);

export function rows(value) {
  const lines = value.split("\n").map((line) => line.trim()).filter(Boolean);
  const found = lines.map((line, at) => {
    const numbers = line.split(/[\s,;]+/).filter(Boolean).map(Number);
    if (numbers.some((number) => !Number.isFinite(number))) {
      throw new Error(`Line ${at + 1} is not a row of numbers: ${line.slice(0, 60)}`);
    }
    return numbers;
  });
  const odd = found.findIndex((numbers) => numbers.length !== found[0].length);
  if (odd > 0) {
    throw new Error(`Line ${odd + 1} has ${found[odd].length} numbers, line 1 has ${found[0].length}. They must be equally many.`);
  }
  return found.map(row);
}
