// Sentences about a measurement. No DOM access.

import { percent, plural, probability, sentence, tokenLabel } from "../../ui/format.js";
import { rangeWords } from "./windows.js";

/** @typedef {import("./measure.js").Measurement} Measurement */
/** @typedef {import("./measure.js").Reading} Reading */
/** @typedef {import("./measure.js").Step} Cell */
/** @typedef {import("./units.js").Unit} Unit */

export const POSITIONS_OFF = "rotary positions off";

/** @param {number} nats */
const short = (nats) => nats.toFixed(2).replace("-", "−");

/**
 * What is predicted, in words, and whether it is one token.
 *
 * @typedef {{what: string, isToken: boolean}} Predicted
 */

/** State of a measurement. @param {Measurement} measurement @param {Predicted} predicted */
export function sayOf(measurement, { what, isToken }) {
  const { nDone, whole, isRunning, steps, units } = measurement;
  if (!what) return "Type an answer of your own, and see how likely the model finds it.";
  if (!units.length) return "Select tokens of the prompt: drag over them, or click the first and the last.";
  if (measurement.problem) return sentence(measurement.problem);
  if (!whole || !nDone) return isRunning ? "Reading the whole prompt …" : questionOf(measurement, what);
  const start = isToken ? `p ${probability(Math.exp(whole.logprob))}` : `log-probability ${short(whole.logprob)}`;
  const unit = measurement.change === "mask" ? "reading" : "part";
  return `With the whole prompt, ${what} has ${start}. Measured: ${nDone} of ${plural(steps.length, unit)}.`;
}

/** @param {Measurement} measurement @param {string} what */
function questionOf({ change, units, steps, windows, nLayers, isByHead }, what) {
  const parts = `${plural(units.length, "part")} of the prompt`;
  const each = isByHead || units.length === 1 ? `“${nameOf(units[0])}”` : `each of the ${parts}`;
  if (change === "mask") {
    const { first, end } = windows[Math.floor(nLayers / 2)];
    const layers = end - first === 1 ? "each layer" : `${end - first} layers around each`;
    const where = isByHead ? "in each head" : `in ${layers}`;
    return `How likely would ${what} be if attention to ${each} were masked, in all layers and ${where}? The engine reads ${what} ${plural(steps.length + 1, "time")}.`;
  }
  const how =
    change === "out"
      ? `without ${each}`
      : `with each two of the ${parts} swapped, and without rotary positions`;
  return `How likely would ${what} be ${how}? The engine reads the text ${plural(steps.length + 1, "time")}.`;
}

/**
 * What one change did. `after`: its reading.
 *
 * @param {Measurement} measurement
 * @param {Predicted} predicted
 * @param {Cell | null} cell null: rotary positions are off
 * @param {Reading} after
 */
export function oneOf(measurement, { what, isToken }, cell, after) {
  const { whole } = measurement;
  if (!whole) return "";
  const [from, to] = isToken
    ? [`${percent(Math.exp(whole.logprob))} %`, `${percent(Math.exp(after.logprob))} %`]
    : [`log-probability ${short(whole.logprob)}`, short(after.logprob)];
  return `${changeWords(measurement, cell)}, ${what} goes from ${from} to ${to}.`;
}

/** @param {Measurement} measurement @param {Cell | null} cell */
function changeWords({ change, units, windows }, cell) {
  if (!cell) return "With rotary positions switched off";
  const unit = units[cell.unit];
  const name = nameOf(unit);
  if (change === "out") return `Without “${name}”`;
  if (change === "swap") return `With “${nameOf(units[cell.unit + 1])}” before “${name}”`;
  const layers = rangeWords(cell.window === null ? null : windows[cell.window]);
  const where = unit.head === undefined ? layers : `head ${unit.head} of ${layers}`;
  return `With attention to “${name}” masked in ${where}`;
}

/** A part of the prompt on one line. @param {Unit} unit */
export const nameOf = ({ text }) => tokenLabel(text.trim().replace(/\s+/g, " ") || text, "·");

/** What a row of the grid is of. @param {Measurement} measurement @param {number} i */
export function rowName({ units, isByHead }, i) {
  if (!isByHead) return nameOf(units[i]);
  return units[i].head === undefined ? "all heads" : `head ${units[i].head}`;
}

/** The measurement as a table. @param {Measurement} measurement @returns {Numbers} */
export function numbersOf(measurement) {
  const { change, units } = measurement;
  if (change === "mask") return maskedNumbers(measurement);
  const { whole, withoutRope } = measurement;
  const rows = units.map((_, i) => rowOf(measurement, i, null));
  if (whole && withoutRope && typeof withoutRope !== "string")
    rows.push([POSITIONS_OFF, null, whole.logprob, withoutRope.logprob, whole.logprob - withoutRope.logprob]);
  return { columns: change === "out" ? OUT_COLUMNS : SWAP_COLUMNS, rows };
}

/** @param {Measurement} measurement @returns {Numbers} */
function maskedNumbers(measurement) {
  const { units, windows, isByHead } = measurement;
  const rows = [null, ...windows.keys()].flatMap((window) => {
    const layers = rangeWords(window === null ? null : windows[window]);
    return units.flatMap(({ head }, i) => {
      if (!measurement.hasCell(i, window)) return [];
      const [text, n, ...numbers] = rowOf(measurement, i, window);
      return [[text, n, layers, ...(isByHead ? [head ?? "all"] : []), ...numbers]];
    });
  });
  const places = isByHead ? ["layers", "head"] : ["layers"];
  return { columns: ["masked", "tokens", ...places, "log-probability before", "after", "difference"], rows };
}

const OUT_COLUMNS = ["left out", "tokens", "log-probability with it", "without it", "difference"];
const SWAP_COLUMNS = ["swapped with the next", "tokens", "log-probability before", "after", "difference"];

/** @param {Measurement} measurement @param {number} i @param {number | null} window @returns {(string | number | null)[]} */
function rowOf(measurement, i, window) {
  const { units, whole } = measurement;
  const { text, from, to } = units[i];
  const after = measurement.reading(i, window)?.logprob ?? null;
  return [text, to - from, whole && whole.logprob, after, measurement.effect(i, window)];
}
