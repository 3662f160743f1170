// Presets that a person named: kept in this browser, and in files of conversations.

import { changed } from "../state.js";
import { PRESETS, SETTING_BY_NAME, SLIDERS, parseStops, writeStops } from "./sampling-settings.js";

const KEY = "tokenglass.presets";
const VERSION = 1;
export const MAX_NAME = 60;
const MAX_PRESETS = 200;

/** Settings of a preset besides the sliders. The seed is none: it belongs to one text. */
const OTHERS = ["max_tokens", "stop"];
/** @type {string[]} */
const NAMES = [...SLIDERS.map(({ name }) => name), ...OTHERS];

/**
 * @typedef {Record<string, number | string[]>} Values
 * @typedef {{name: string, values: Values}} Preset
 */

/** @type {Preset[]} in the order of their names */
let presets = readStored();

addEventListener("storage", ({ key }) => {
  if (key !== KEY) return;
  presets = readStored();
  changed("settings");
});

function readStored() {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "null");
    return stored?.version === VERSION ? checkPresets(stored.presets) : [];
  } catch {
    return []; // no storage, or not ours
  }
}

export const ownPresets = () => presets;

/** Return the preset that has all of these values, or undefined. @param {Settings} settings */
export const ownPresetOf = (settings) =>
  presets.find(({ values }) => sameValues(values, valuesOf(settings)));

/**
 * @param {Values} a
 * @param {Values} b
 */
const sameValues = (a, b) =>
  NAMES.every((name) => JSON.stringify(a[name]) === JSON.stringify(b[name]));

/**
 * The settings that a preset has.
 *
 * @param {Settings | Values} settings
 * @returns {Values}
 */
const valuesOf = (settings) =>
  /** @type {Values} */ (
    Object.fromEntries(Object.entries(settings).filter(([name]) => NAMES.includes(name)))
  );

/** Why a name cannot be given, or "". @param {string} name */
export function whyNotName(name) {
  if (name === "") return "A preset needs a name.";
  if (Object.keys(PRESETS).some((own) => own.toLowerCase() === name.toLowerCase()))
    return `“${name}” is one of the page’s own presets; choose another name.`;
  if (presets.length >= MAX_PRESETS) return `There can be at most ${MAX_PRESETS} presets.`;
  return "";
}

/**
 * Keep the settings under a name; one of that name is replaced. Returns why not, or "".
 *
 * @param {string} name
 * @param {Settings | Values} settings
 */
export function savePreset(name, settings) {
  return put([...presets.filter((each) => each.name !== name), { name, values: valuesOf(settings) }]);
}

/** @param {string} name */
export const deletePreset = (name) => put(presets.filter((each) => each.name !== name));

/**
 * Add presets of a file that are not here. One with the name of another gets a number. Returns how
 * many were added.
 *
 * @param {unknown} given
 */
export function addPresets(given) {
  const all = [...presets];
  for (const { name, values } of checkPresets(given)) {
    let free = name;
    for (let n = 2; ; n += 1) {
      const other = all.find((each) => each.name === free);
      if (!other && all.length < MAX_PRESETS) all.push({ name: free, values });
      if (!other || sameValues(other.values, values)) break; // it may have got a number before
      free = numbered(name, n);
    }
  }
  const added = all.length - presets.length;
  return added && put(all) === "" ? added : 0;
}

/** @param {string} name @param {number} n */
function numbered(name, n) {
  const number = ` (${n})`;
  return name.slice(0, MAX_NAME - number.length) + number;
}

/** @param {Preset[]} wanted */
function put(wanted) {
  const sorted = wanted.toSorted((a, b) => a.name.localeCompare(b.name));
  try {
    localStorage.setItem(KEY, JSON.stringify({ version: VERSION, presets: sorted }));
  } catch {
    return "This browser’s storage is full, or the page may not use it here.";
  }
  presets = sorted;
  changed("settings");
  return "";
}

// ---- checking ----------------------------------------------------------------------------------

/**
 * Return the presets in `given` that this page can use; missing settings do not act.
 *
 * @param {unknown} given
 */
function checkPresets(given) {
  if (!Array.isArray(given)) return [];
  return given.slice(0, MAX_PRESETS).map(checkPreset).filter((each) => each !== null);
}

/** @param {unknown} given */
function checkPreset(given) {
  const { name, values } = /** @type {Partial<Preset>} */ (given ?? {});
  const named = typeof name === "string" && name.trim() !== "" && name.length <= MAX_NAME;
  if (!named || values === null || typeof values !== "object") return null;
  /** @type {Values} */
  const checked = {};
  for (const setting of NAMES) {
    const value = values[setting] ?? initialOf(setting);
    const isGood = setting === "stop" ? isStops(value) : isNumber(value, SETTING_BY_NAME[setting]);
    if (!isGood) return null;
    checked[setting] = value;
  }
  return { name, values: checked };
}

/**
 * Value of a setting that a preset does not have, because it is older than the setting.
 *
 * @param {string} name
 */
function initialOf(name) {
  if (name === "stop") return [];
  const { neutral, initial } = SETTING_BY_NAME[name];
  return neutral ?? initial;
}

/**
 * @param {unknown} value
 * @param {SamplingSetting} setting
 */
function isNumber(value, { min, max, integer }) {
  const fits = typeof value === "number" && value >= min && value <= max;
  return fits && (!integer || Number.isInteger(value));
}

/** @param {unknown} value */
function isStops(value) {
  if (!Array.isArray(value) || !value.every((each) => typeof each === "string")) return false;
  const { value: read } = parseStops(writeStops(value));
  return JSON.stringify(read) === JSON.stringify(value);
}
