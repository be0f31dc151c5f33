// Examples: {kind, payload, picture, name}. `payload` is what the server takes: base64, a text or a
// row of numbers. `picture` is the URL of a preview, or null.

const LARGE = 1_000_000; // bytes: larger files are downscaled before they are sent
const SIDE = 1024; // px
const STORED_SIDE = 320; // px, of held-out examples: sessionStorage is small

export const image = (payload, type, name) =>
  ({ kind: "images", payload, picture: `data:${type};base64,${payload}`, name });

export const text = (payload) => ({ kind: "texts", payload, picture: null, name: payload });

export const row = (payload) => ({ kind: "features", payload, picture: null, name: payload.join(", ") });

const base64 = (blob) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => reject(new Error(`${blob.name ?? "A file"} cannot be read.`));
  reader.readAsDataURL(blob);
});

async function downscale(blob, side) {
  const bitmap = await createImageBitmap(blob);
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
  const canvas = Object.assign(document.createElement("canvas"), {
    width: Math.max(1, Math.round(bitmap.width * scale)),
    height: Math.max(1, Math.round(bitmap.height * scale)),
  });
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff"; // transparent pixels become white, as on the server
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
}

// A file that the browser cannot read is sent unchanged: the server may read it.
export async function fromFile(file) {
  const name = file.name || "picture";
  if (file.size > LARGE) {
    try {
      return image(await base64(await downscale(file, SIDE)), "image/jpeg", name);
    } catch { /* send it unchanged */ }
  }
  return image(await base64(file), file.type || "image/png", name);
}

const blobOf = ({ payload }) => new Blob([Uint8Array.from(atob(payload), (char) => char.charCodeAt(0))]);

// The payload to store in the browser; null if it cannot be downscaled.
export async function toStorable(example) {
  if (example.kind !== "images" || example.payload.length < 40_000) return example.payload;
  try {
    return await base64(await downscale(blobOf(example), STORED_SIDE));
  } catch {
    return null;
  }
}

// The URL of a small picture of an example; null if the browser cannot read it.
export async function downscaled(example, side) {
  try {
    return `data:image/jpeg;base64,${await base64(await downscale(blobOf(example), side))}`;
  } catch {
    return null;
  }
}

export const texts = (value) => value.split("\n").map((line) => line.trim()).filter(Boolean).map(text);

export function rows(value) {
  const lines = value.split("\n").map((line) => line.trim()).filter(Boolean);
  const parsed = lines.map((line, i) => {
    const numbers = line.split(/[\s,;]+/).filter(Boolean).map(Number);
    if (numbers.some((number) => !Number.isFinite(number))) {
      throw new Error(`Line ${i + 1} is not a row of numbers: ${line.slice(0, 60)}`);
    }
    return numbers;
  });
  const odd = parsed.findIndex((numbers) => numbers.length !== parsed[0].length);
  if (odd > 0) {
    throw new Error(`Line ${odd + 1} has ${parsed[odd].length} numbers, line 1 has ${parsed[0].length}. All rows must have the same length.`);
  }
  return parsed.map(row);
}
