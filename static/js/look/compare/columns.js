// The columns of a comparison: each has its own sampling settings and interventions, and may have a
// prompt of its own; and the answer that they gave. The first has those of the page.

import { bindControls, interventionsOf, releaseControls } from "../../settings/bound-controls.js";
import { isEmpty } from "../../interventions/interventions.js";
import { newStore } from "../../interventions/intervention-store.js";
import { toWire } from "../../interventions/intervention-wire.js";
import { send } from "../../net/connection.js";
import { PRESETS, presetOf } from "../../settings/sampling-settings.js";
import { changed, lastTurn, setState, shownAnswer, state } from "../../state.js";
import { pin, showAnswer, view } from "../../view.js";

export const MAX_COLUMNS = 4;

/** @type {CompareColumn[]} */
let columns = [];
let selected = 0;

export const allColumns = () => columns;
export const selectedNumber = () => selected;
export const isRunning = () => columns.some(({ answer }) => answer?.running);

/** @param {number} i */
const nameOf = (i) => `column ${"ABCD"[i]}`;
const EMPTY = { prompt: "", asked: null, answer: null, refused: "" };

/** Settings and interventions (a `Setting`) of a column now. @param {CompareColumn} column */
export const settingsOf = ({ settings }) => settings ?? (state.own ?? state).settings;
/** @param {CompareColumn} column */
export const settingOf = (column) =>
  (column.settings ? interventionsOf(column) : (state.own ?? state).interventions).setting;

// ---- columns -----------------------------------------------------------------------------------

/** Make the first two columns: the page's settings, and others that are likely to differ. */
export function openColumns() {
  if (!columns.length) {
    columns = [{ ...EMPTY, name: nameOf(0), settings: null, interventions: null }];
    addColumn(contrastOf(settingsOf(columns[0]), settingOf(columns[0])));
    select(0);
  } else select(selected);
}

/**
 * Begin again with the page's column and one for each of `others`: settings that differ from it, and
 * `prompt`, if it has its own.
 *
 * @param {(Partial<NumberSettings> & {prompt?: string})[]} others
 */
export function setColumns(others) {
  releaseControls();
  columns = columns.slice(0, 1);
  selected = 0;
  Object.assign(columns[0], EMPTY);
  const [settings, setting] = [settingsOf(columns[0]), settingOf(columns[0])];
  for (const { prompt, ...values } of others)
    addColumn({ settings: { ...settings, ...values }, setting, prompt });
  select(0);
}

/**
 * Other settings than the page's: without its interventions, or another preset.
 *
 * @param {Settings} settings
 * @param {Setting} setting
 */
function contrastOf(settings, setting) {
  if (!isEmpty(toWire(setting))) return { settings, setting: newStore().setting };
  const other = presetOf(settings) === "Greedy" ? PRESETS.Balanced : PRESETS.Greedy;
  return { settings: { ...settings, ...other }, setting };
}

/**
 * Add a column with other settings, or with those of the selected one, and select it.
 *
 * @param {{settings: Settings, setting: Setting, prompt?: string} | null} [like]
 */
export function addColumn(like = null) {
  if (columns.length === MAX_COLUMNS) return;
  const model = columns[selected];
  const own = { settings: settingsOf(model), setting: settingOf(model), prompt: model.prompt };
  const { settings, setting, prompt = "" } = like ?? own;
  columns.push({
    ...EMPTY,
    prompt,
    name: nameOf(columns.length),
    settings: { ...settings, stop: [...settings.stop] },
    interventions: newStore(setting),
  });
  select(columns.length - 1);
}

/** The page's own column stays, and two are the fewest. @param {number} number */
export const isRemovable = (number) => number > 0 && columns.length > 2;

/** Remove a column; its run is stopped. @param {number} number */
export function removeColumn(number) {
  if (!isRemovable(number)) return;
  stopColumn(columns[number]);
  releaseControls();
  columns.splice(number, 1);
  columns.forEach((column, i) => (column.name = nameOf(i)));
  select(Math.min(selected, columns.length - 1));
}

/**
 * Make the page's controls act on a column, and show its answer in the core sample.
 *
 * @param {number} number
 */
export function select(number) {
  selected = number;
  const column = columns[number];
  if (column.settings) bindControls(column);
  else releaseControls();
  setState({ compared: column.answer });
  if (column.answer && column.answer !== view.answer) showAnswer(column.answer);
  changed("look", "settings");
}

/** Focus a token of a column. @param {number} number @param {number | null} index */
export function focusToken(number, index) {
  if (number !== selected) select(number);
  pin(index);
}

/** Give the controls and the core sample back to the conversation. */
export function closeColumns() {
  releaseControls();
  setState({ compared: null });
  selected = 0;
  if (columns.some(({ answer }) => answer && answer === view.answer))
    showAnswer(shownAnswer(lastTurn()));
}

/** @param {CompareColumn} column */
export function stopColumn({ answer }) {
  if (answer?.segment?.running) send({ type: "stop", id: answer.segment.id });
}

export const stopAll = () => columns.forEach(stopColumn);
