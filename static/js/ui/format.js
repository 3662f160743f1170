// Formatting of numbers and tokens for people.

const grouped = new Intl.NumberFormat("en");

/** @param {number} n */
export const count = (n) => grouped.format(n);

/**
 * "1 token", "2 tokens".
 *
 * @param {number} n
 * @param {string} word
 */
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

/** A text as a sentence: with a full stop, and a capital letter unless it begins with the name of a
 * file, a field or an address.
 *
 * @param {string} text
 */
export const sentence = (text) => {
  const isName = /^\S*[/.:_]\S/.test(text);
  const first = isName ? text.slice(0, 1) : text.slice(0, 1).toUpperCase();
  return text && first + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
};

/** Milliseconds with a unit: "84 ms", "2.95 s", "3 min 20 s". @param {number} ms */
export function duration(ms) {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 100_000) return `${(ms / 1000).toFixed(2)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/**
 * Say why GPU times are unknown: those of layers, or those of dispatches (`inside` false).
 *
 * @param {ToPage.DeviceInfo} device
 * @param {boolean} [inside]
 */
export function whyNoTimes({ features }, inside = true) {
  const feature = inside ? "timestamp-query-inside-passes" : "timestamp-query";
  if (!features.includes(feature))
    return `this device has no timestamps${inside ? " inside a pass" : ""}`;
  return "this step was not timed; some devices time only some steps, and with --expert-slots none is";
}

/** "rounded by the browser to 0.1 ms", of the GPU times of a device; "" where they are exact. */
export const clockRounding = ({ clock_ms: ms = 0 }) =>
  ms ? `rounded by the browser to ${figure(ms)} ms` : "";

/** Three significant digits for a figure: "24.3", "0.62", "1,240". @param {number} value */
export function figure(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 1000) return count(Math.round(value));
  if (value >= 100) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

const UNITS = ["B", "KB", "MB", "GB", "TB"];

/** Bytes in decimal units, as vendors count: "8.4 MB". @param {number} n */
export function bytes(n) {
  let unit = 0;
  while (n >= 999.5 && unit < UNITS.length - 1) {
    n /= 1000;
    unit += 1;
  }
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${UNITS[unit]}`;
}

/** Number of parameters: "3.1 M". @param {number} n */
export function parameters(n) {
  if (n >= 1e9) return `${(n / 1e9).toFixed(1)} B`;
  return n >= 1e6 ? `${(n / 1e6).toFixed(1)} M` : `${(n / 1e3).toFixed(0)} K`;
}

/** "1st", "2nd", "11th" from a rank that starts at 0. @param {number} rank */
export function ordinal(rank) {
  const n = rank + 1;
  const teen = n % 100 > 10 && n % 100 < 14;
  return `${count(n)}${(!teen && ["th", "st", "nd", "rd"][n % 10]) || "th"}`;
}

/** A probability; small ones keep a significant digit. @param {number} p */
export function probability(p) {
  if (p >= 0.0995 || p === 0) return p.toFixed(2);
  return p >= 0.00095 ? p.toFixed(3) : p.toExponential(0);
}

/** A share in per cent, without the sign. @param {number} share */
export function percent(share) {
  const value = 100 * share;
  if (value === 0) return "0";
  return value < 0.05 ? "<0.1" : value.toFixed(1);
}

/** @type {Record<string, string>} */
const CONTROL = { "\n": "↵", "\t": "⇥", "\r": "␍", "\u0000": "␀" };

/**
 * A token's text on one line: line breaks and a lone space become visible.
 *
 * @param {string} text
 * @param {string} [fallback]
 */
export function tokenLabel(text, fallback = "") {
  if (text === "") return fallback;
  const shown = text.replace(/^ (?=\S)/, "").replace(/[\n\t\r\u0000]/g, (c) => CONTROL[c]);
  return shown.trim() === "" ? "␣".repeat(shown.length) : shown;
}
