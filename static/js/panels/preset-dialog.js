// Dialog of the presets that a person named: save, use, delete.

import { state } from "../state.js";
import { byId, el, setText } from "../ui/dom.js";
import { newIconButton } from "../ui/icon-button.js";
import {
  deletePreset,
  ownPresetOf,
  ownPresets,
  savePreset,
  whyNotName,
} from "../settings/own-presets.js";
import { SETTING_BY_NAME, SLIDERS, writeNumber, writeStops } from "../settings/sampling-settings.js";

const dialog = byId("presets-dialog");
const field = byId("preset-name");

/** @typedef {import("../settings/own-presets.js").Preset} Preset */

/** The preset that was deleted last, or null. @type {Preset | null} */
let deleted = null;
/** @type {(values: Preset["values"]) => void} */
let usePreset = () => {};

/** `use(values)` makes these the page's settings. @param {typeof usePreset} use */
export function setUpPresetDialog(use) {
  usePreset = use;
  byId("presets-open").addEventListener("click", open);
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  byId("presets-close").addEventListener("click", () => dialog.close());
  field.addEventListener("input", () => {
    complain("");
    drawSave();
  });
  byId("preset-form").addEventListener("submit", (event) => {
    event.preventDefault();
    save();
  });
  byId("preset-undo-button").addEventListener("click", () => {
    if (!deleted) return;
    const { name, values } = deleted;
    deleted = null;
    complain(savePreset(name, values));
    draw();
    field.focus();
  });
}

function open() {
  deleted = null;
  field.value = "";
  complain("");
  draw();
  dialog.showModal();
}

function save() {
  const name = field.value.trim();
  const why = whyNotName(name) || savePreset(name, state.settings);
  complain(why);
  if (why) return;
  field.value = "";
  draw();
}

/** @param {string} text */
function complain(text) {
  setText(byId("preset-error"), text);
  byId("preset-error").hidden = text === "";
  if (text) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
}

function drawSave() {
  const isTaken = ownPresets().some(({ name }) => name === field.value.trim());
  setText(byId("preset-save"), isTaken ? "Replace" : "Save");
}

function draw() {
  drawSave();
  const current = ownPresetOf(state.settings)?.name;
  byId("preset-list").replaceChildren(...ownPresets().map((each) => newRow(each, current)));
  setText(byId("preset-undo-text"), deleted ? `Deleted “${deleted.name}”` : "");
  byId("preset-undo").hidden = !deleted;
}

/** @param {Preset} preset @param {string | undefined} current */
function newRow(preset, current) {
  const row = el("li", "preset");
  const use = el("button", "preset-use");
  use.type = "button";
  if (preset.name === current) use.setAttribute("aria-current", "true");
  use.append(el("b", "", preset.name), el("span", "sub", describe(preset.values)));
  use.addEventListener("click", () => {
    usePreset(preset.values);
    dialog.close();
  });
  const remove = newIconButton("delete", `Delete “${preset.name}”`, () => {
    const why = deletePreset(preset.name);
    deleted = why ? null : preset;
    complain(why);
    draw();
    (why ? field : byId("preset-undo-button")).focus();
  });
  row.append(use, remove);
  return row;
}

/** The settings that act: "temperature 0.80, top-k 40, 256 tokens". @param {Preset["values"]} values */
function describe(values) {
  const acting = SLIDERS.filter(({ name, neutral, initial }) => values[name] !== (neutral ?? initial));
  const parts = acting.map((setting) => `${setting.label} ${writeNumber(Number(values[setting.name]), setting)}`);
  parts.push(`${SETTING_BY_NAME.max_tokens.label} ${values.max_tokens}`);
  if (Array.isArray(values.stop) && values.stop.length) parts.push(`stop at ${writeStops(values.stop)}`);
  return parts.join(", ");
}
