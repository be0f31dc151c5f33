// Numbers and records as a person would say them.

export const many = (count, one, more = `${one}s`) =>
  `${count.toLocaleString("en")} ${count === 1 ? one : more}`;

export const percent = (share) => {
  const value = 100 * share;
  if (value > 0 && value < 1) return "< 1 %";
  if (value < 100 && value > 99) return "> 99 %";
  return `${Math.round(value)} %`;
};

export function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  if (bytes < 1e6) return `${Math.round(bytes / 1000)} KB`;
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

export function when(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "";
  const minutes = (Date.now() - date) / 60000;
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${many(Math.floor(minutes), "minute")} ago`;
  if (minutes < 24 * 60) return `at ${date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}`;
  return `on ${date.toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" })}`;
}

// Novelty is a place on the bell curve of a class's own examples: see the explanation of novelty.
export function fit(novelty) {
  if (novelty < 1) return "It fits well.";
  if (novelty < 1.64) return "It fits, though it is a little unusual.";
  if (novelty < 3) return "It is unusual: few examples of this class look like it.";
  return "It is unlike anything it was taught.";
}

const list = (words) =>
  words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;

export function counted(counts) {
  const entries = Object.entries(counts);
  const words = entries.slice(0, 3).map(([label, count]) => `${label} (${Math.abs(count)})`);
  const rest = entries.length - words.length;
  return list(rest > 0 ? [...words, `${many(rest, "more class", "more classes")}`] : words);
}

const VERBS = {
  learn: "taught", unlearn: "took back", forget: "forgot", merge: "added another model:", save: "saved",
};

export const step = ({ what, counts }) => `${VERBS[what] ?? what} ${counted(counts)}`.trim();
