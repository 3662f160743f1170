// Sampling settings: ranges (those of the server's gpu/sampling.py), presets, and validation.

import { describeMove } from "./reach.js";

export const MAX_SEED = 2n ** 64n - 1n;
const MAX_STOP_STRINGS = 16;
const MAX_STOP_CHARS = 256;

/**
 * The settings with a slider. `least`/`most`: what the server accepts in the box; `from`/`to`/`step`:
 * the slider's part of it, where the useful values are.
 */
export const SLIDERS = [
  {
    name: "temperature",
    label: "temperature",
    least: 0,
    most: 10,
    from: 0,
    to: 2,
    step: 0.05,
    off: 0,
    offText: "0, greedy",
  },
  {
    name: "top_k",
    label: "top-k",
    least: 0,
    most: 2 ** 31 - 1,
    from: 0,
    to: 100,
    step: 1,
    integer: true,
    off: 0,
    offText: "0, all tokens",
  },
  {
    name: "top_p",
    label: "top-p",
    least: 0,
    most: 1,
    from: 0,
    to: 1,
    step: 0.01,
    off: 1,
    offText: "1, all tokens",
  },
  {
    name: "min_p",
    label: "min-p",
    least: 0,
    most: 1,
    from: 0,
    to: 0.5,
    step: 0.01,
    off: 0,
    offText: "0, all tokens",
  },
  {
    name: "repetition_penalty",
    label: "repeat penalty",
    least: 0.1,
    most: 10,
    from: 1,
    to: 2,
    step: 0.05,
    off: 1,
    offText: "1, none",
  },
];
export const MAX_TOKENS = {
  name: "max_tokens",
  label: "max tokens",
  least: 1,
  most: 2 ** 31 - 1,
  integer: true,
};

/** Settings that may change while the text is written. */
export const LIVE = [...SLIDERS.map(({ name }) => name), "max_tokens"];

export const PRESETS = {
  Greedy: { temperature: 0, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1 },
  Precise: { temperature: 0.4, top_k: 20, top_p: 0.8, min_p: 0.05, repetition_penalty: 1 },
  Balanced: { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, repetition_penalty: 1 },
  Wild: { temperature: 1.4, top_k: 0, top_p: 0.98, min_p: 0, repetition_penalty: 1 },
};

/** The preset whose values these settings have, or "". */
export function presetOf(settings) {
  const same = (values) => Object.entries(values).every(([name, v]) => settings[name] === v);
  return Object.keys(PRESETS).find((name) => same(PRESETS[name])) ?? "";
}

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

/** {value} or {error}: the number in a box, checked as the server checks it. */
export function parseNumber(text, { label, least, most, integer = false }) {
  const kind = integer ? "a whole number" : "a number";
  const trimmed = text.trim().replace(",", ".");
  const value = Number(trimmed);
  const ok =
    NUMBER.test(trimmed) &&
    value >= least &&
    value <= most &&
    !(integer && !Number.isInteger(value));
  if (ok) return { value };
  return { error: `${label} must be ${kind} from ${least} to ${most.toLocaleString("en")}` };
}

/** {value} or {error}: a seed as a string of digits, "" for a random one. Seeds have 64 bits. */
export function parseSeed(text) {
  const trimmed = text.trim();
  if (trimmed === "") return { value: "" };
  if (/^\d{1,20}$/.test(trimmed) && BigInt(trimmed) <= MAX_SEED)
    return { value: String(BigInt(trimmed)) };
  return { error: "seed must be a whole number from 0 to 2⁶⁴ − 1, or empty for a random one" };
}

/** A fresh seed, as a string of digits. */
export function drawSeed() {
  return String(crypto.getRandomValues(new Uint32Array(1))[0]);
}

const ESCAPES = { n: "\n", t: "\t", r: "\r", "\\": "\\", ",": "," };

/** {value} or {error}: comma-separated stop strings; \n, \t, \r, \, and \\ are escapes. */
export function parseStops(text) {
  const value = [];
  let current = "";
  for (let i = 0; i < text.length; i += 1) {
    const c = text[i];
    if (c === ",") {
      value.push(current);
      current = "";
    } else if (c === "\\" && text[i + 1] in ESCAPES) {
      current += ESCAPES[text[(i += 1)]];
    } else current += c;
  }
  value.push(current);
  const stops = value
    .map((s) => (s.trim() === "" && !/[\n\t\r]/.test(s) ? "" : s.replace(/^ +| +$/g, "")))
    .filter((s) => s !== "");
  if (stops.length > MAX_STOP_STRINGS)
    return { error: `there may be ${MAX_STOP_STRINGS} stop strings at most` };
  if (stops.some((s) => s.length > MAX_STOP_CHARS))
    return { error: `a stop string may have ${MAX_STOP_CHARS} characters at most` };
  return { value: stops };
}

/** Stop strings as `parseStops` reads them. */
export function writeStops(stops) {
  const escaped = { "\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", ",": "\\," };
  return stops.map((s) => s.replace(/[\n\t\r\\,]/g, (c) => escaped[c])).join(", ");
}

/** A value as its box shows it. */
export function writeNumber(value, { integer = false }) {
  if (integer) return String(value);
  return Number.isInteger(value * 100) || value.toFixed(2) === String(value)
    ? value.toFixed(2)
    : String(value);
}

/** Which live settings differ: [{name, from, to}]. */
export function differences(before, after) {
  return LIVE.filter((name) => before[name] !== after[name]).map((name) => ({
    name,
    from: before[name],
    to: after[name],
  }));
}

const NAMES = {
  ...Object.fromEntries(SLIDERS.map(({ name, label }) => [name, label])),
  max_tokens: "max tokens",
  capture: "capture",
};
const short = (value) =>
  typeof value === "boolean" ? (value ? "on" : "off") : String(Number(value.toPrecision(6)));

/** "temperature 0.7 → 1.2", "head 2.3 off"; or `words`, when it has some of its own. */
export function describeChange({ name, from, to, words }) {
  if (words !== undefined) return words;
  return name === "reach" ? describeMove(from, to) : `${NAMES[name]} ${short(from)} → ${short(to)}`;
}
