// Numbers and records as text.

export const plural = (count, singular, many = `${singular}s`) =>
  `${count.toLocaleString("en")} ${count === 1 ? singular : many}`;

export const percent = (share) => {
  const value = 100 * share;
  if (value > 0 && value < 1) return "< 1 %";
  if (value < 100 && value > 99) return "> 99 %";
  return `${Math.round(value)} %`;
};

// Percentages that sum to 100 together with that of all other classes, which comes last.
export function percentages(probabilities) {
  const parts = [...probabilities, Math.max(0, 1 - probabilities.reduce((sum, p) => sum + p, 0))];
  const rounded = parts.map((p) => Math.floor(100 * p + 1e-9));
  const missing = 100 - rounded.reduce((sum, value) => sum + value, 0);
  const byRemainder = parts.map((p, i) => [100 * p - rounded[i], i]).sort(([a], [b]) => b - a);
  for (const [, i] of byRemainder.slice(0, missing)) rounded[i] += 1;
  return parts.map((p, i) => {
    if (rounded[i] === 0 && p > 1e-9) return "< 1 %";
    return rounded[i] === 100 && p < 1 - 1e-9 ? "> 99 %" : `${rounded[i]} %`;
  });
}

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

const UNUSUAL = 1.64; // standard deviations: one in twenty examples of a class lies beyond

// Whether percentages make sense: they sum to 100 % over the known classes, so they would contradict
// an answer "none of these" and an example that hardly fits any of them.
export const hasPercentages = ({ label, novelty }) => label !== null && (novelty === null || novelty < UNUSUAL);

// Novelty is in standard deviations of the examples of the class; null if there are too few.
export function fit({ label, novelty }) {
  if (novelty === null) return "Too few examples to tell whether this is of an unknown class. Teach more per class.";
  if (label === null) return "Unlike the learned examples. Most similar classes:";
  if (novelty < 1) return "Typical of this class.";
  if (novelty < UNUSUAL) return "A little unusual for this class.";
  return `${novelty < 3 ? "Unusual for this class" : "Unlike the learned examples"}. Most similar classes:`;
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
