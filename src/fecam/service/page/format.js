// Numbers and records as text.

export const plural = (count, singular, many = `${singular}s`) =>
  `${count.toLocaleString("en")} ${count === 1 ? singular : many}`;

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
  if (minutes < 60) return `${plural(Math.floor(minutes), "minute")} ago`;
  if (minutes < 24 * 60) return `at ${date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}`;
  return `on ${date.toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" })}`;
}

// Novelty is in standard deviations of the examples of the class; null if there are too few.
export function fit(novelty, rejected) {
  if (novelty === null) return "Too few examples to tell whether this is of an unknown class. Teach more per class.";
  if (rejected) return "Unlike the learned examples. Most similar classes:";
  if (novelty < 1) return "Typical of this class.";
  if (novelty < 1.64) return "A little unusual for this class.";
  return `${novelty < 3 ? "Unusual for this class" : "Unlike the learned examples"}. The percentages assume one of these classes.`;
}

const list = (texts) =>
  texts.length < 2 ? texts.join("") : `${texts.slice(0, -1).join(", ")} and ${texts.at(-1)}`;

export function classCounts(counts) {
  const entries = Object.entries(counts);
  const texts = entries.slice(0, 3).map(([label, count]) => `${label} (${Math.abs(count)})`);
  const others = entries.length - texts.length;
  return list(others > 0 ? [...texts, plural(others, "more class", "more classes")] : texts);
}

const VERBS = { learn: "learned", unlearn: "unlearned", forget: "forgot", rename: "renamed", join: "joined", merge: "merged", save: "saved" };

export const step = ({ what, counts }) => `${VERBS[what] ?? what} ${classCounts(counts)}`.trim();
