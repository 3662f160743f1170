// Sampling settings as the server declares them, presets, and validation of what people type. The values
// are in `state`, and turns/persist.js keeps them in the browser.

import { describeInterventionChange } from "../interventions/interventions.js";
import { pageData } from "../ui/page-data.js";

/** @type {SamplingData} */
const DATA = pageData("sampling-data");

/**
 * The numeric sampling settings as the server declares them (gpu/sampling_params.py), without the seed.
 *   label, help   name and tooltip
 *   integer, min, max   the numbers that the server accepts
 *   initial   value before the server's or the user's own are known
 *   live      may change while the text is written
 *   stage     where it changes the distribution: "penalty", "temperature", "filter" or null
 *   neutral   value that changes nothing, of a setting that has a stage
 *   off       {value, words}: shown as switched off, or null
 *   slider    {min, max, step}: the part of the range with the useful values, or null
 *
 * @type {SamplingSetting[]}
 */
export const SETTINGS = DATA.settings;
/** @type {Record<string, SamplingSetting>} */
export const SETTING_BY_NAME = Object.fromEntries(SETTINGS.map((each) => [each.name, each]));
export const SLIDERS = SETTINGS.filter(({ slider }) => slider);
export const FILTERS = SETTINGS.filter(({ stage }) => stage === "filter");
export const PENALTIES = SETTINGS.filter(({ stage }) => stage === "penalty");
export const WATERMARK = ["watermark_bias", "greenlist_ratio", "hashing_key", "selfhash_width"].map((name) => SETTING_BY_NAME[name]);
/** Names of the settings that may change while the text is written. */
export const LIVE = SETTINGS.filter(({ live }) => live).map(({ name }) => name);

export const MAX_SEED = BigInt(DATA.max_seed);
const MAX_STOP_STRINGS = DATA.max_stop_strings;
const MAX_STOP_CHARS = DATA.max_stop_chars;

/** Whether the likeliest token is taken, without a draw. @param {NamedSettings | Settings} settings */
export const isGreedy = ({ temperature }) => temperature < DATA.greedy_below;

const NEUTRAL = Object.fromEntries(SLIDERS.map(({ name, neutral, initial }) => [name, neutral ?? initial]));

/** Values of all sliders by the preset's name. @type {Record<string, Record<string, number>>} */
export const PRESETS = {
  Greedy: { ...NEUTRAL, temperature: 0 },
  Precise: { ...NEUTRAL, temperature: 0.4, top_k: 20, top_p: 0.8, min_p: 0.05 },
  Balanced: { ...NEUTRAL, temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05 },
  Wild: { ...NEUTRAL, temperature: 1.4, top_p: 0.98 },
};

/** Settings of a page that has none saved. */
export const INITIAL_SETTINGS = /** @type {Settings} */ (/** @type {unknown} */ ({
  ...Object.fromEntries(SETTINGS.map(({ name, initial }) => [name, initial])),
  ...PRESETS.Balanced,
  seed: "",
  stop: [],
}));

/** Name of the preset that has these values, or "". @param {NamedSettings} settings */
export function presetOf(settings) {
  /** @param {Record<string, number>} values */
  const same = (values) => Object.entries(values).every(([name, v]) => settings[name] === v);
  return Object.keys(PRESETS).find((name) => same(PRESETS[name])) ?? "";
}

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
/** A whole number whose digits are grouped, as the page itself writes large ones. */
const GROUPED = /^[+-]?\d{1,3}(,\d{3})+$/;

/**
 * Read a number that was typed: {value}, or {error} where the server would refuse it. A comma groups
 * the digits of a whole number, and is the decimal point of any other.
 *
 * @param {string} text
 * @param {{label: string, min: number, max: number, integer?: boolean}} setting
 */
export function parseNumber(text, { label, min, max, integer = false }) {
  const kind = integer ? "a whole number" : "a number";
  const typed = text.trim();
  const trimmed = !integer
    ? typed.replace(",", ".")
    : GROUPED.test(typed) ? typed.replaceAll(",", "") : typed;
  const value = Number(trimmed);
  const ok =
    NUMBER.test(trimmed) &&
    value >= min &&
    value <= max &&
    !(integer && !Number.isInteger(value));
  if (ok) return { value };
  return { error: `${label} must be ${kind} from ${min} to ${max.toLocaleString("en")}` };
}

/**
 * Read a seed that was typed: {value}, a string of digits or "" for a random one; or {error}. Seeds
 * have 64 bits, which numbers here do not.
 *
 * @param {string} text
 */
export function parseSeed(text) {
  const trimmed = text.trim();
  if (trimmed === "") return { value: "" };
  if (/^\d{1,20}$/.test(trimmed) && BigInt(trimmed) <= MAX_SEED)
    return { value: String(BigInt(trimmed)) };
  return { error: "seed must be a whole number from 0 to 2⁶⁴ − 1, or empty for a random one" };
}

/** Draw a new seed, as a string of digits. */
export function drawSeed() {
  return String(crypto.getRandomValues(new Uint32Array(1))[0]);
}

/** @type {Record<string, string>} */
const ESCAPES = { n: "\n", t: "\t", r: "\r", "\\": "\\", ",": "," };

/**
 * Read stop strings separated by commas: {value}, a list, or {error}. \n, \t, \r, \, and \\ are
 * escapes.
 *
 * @param {string} text
 */
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
    return { error: `there can be at most ${MAX_STOP_STRINGS} stop strings` };
  if (stops.some((s) => s.length > MAX_STOP_CHARS))
    return { error: `a stop string can have at most ${MAX_STOP_CHARS} characters` };
  return { value: stops };
}

/** Write stop strings in the form that `parseStops` reads. @param {string[]} stops */
export function writeStops(stops) {
  /** @type {Record<string, string>} */
  const escaped = { "\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", ",": "\\," };
  return stops.map((s) => s.replace(/[\n\t\r\\,]/g, (c) => escaped[c])).join(", ");
}

/**
 * Write a value as its box shows it.
 *
 * @param {number} value
 * @param {SamplingSetting} setting
 */
export function writeNumber(value, { integer = false }) {
  if (integer) return String(value);
  return Number.isInteger(value * 100) || value.toFixed(2) === String(value)
    ? value.toFixed(2)
    : String(value);
}

/**
 * List the live settings that differ: [{name, from, to}].
 *
 * @param {NamedSettings} before
 * @param {NamedSettings} after
 * @returns {Change[]}
 */
export function differences(before, after) {
  return LIVE.filter((name) => before[name] !== after[name]).map((name) => ({
    name,
    from: before[name],
    to: after[name],
  }));
}

/** @param {number | boolean} value */
const short = (value) =>
  typeof value === "boolean" ? (value ? "on" : "off") : String(Number(value.toPrecision(6)));

/**
 * Describe a change: "temperature 0.7 → 1.2", "head 2.3 off"; or `words`, if it has them.
 *
 * @param {Change} change
 */
export function describeChange({ name, from, to, words }) {
  if (words !== undefined) return words;
  if (name === "reach") return describeInterventionChange(from, to);
  return `${SETTING_BY_NAME[name]?.label ?? name} ${short(from)} → ${short(to)}`;
}
