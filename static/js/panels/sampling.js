// The sampling panel: sliders with number boxes, presets, seed, length and stop strings.

import { byId, clamp, el, setText, setVars } from "../ui/dom.js";
import { isEnter } from "../ui/enter-key.js";
import {
  drawSeed,
  parseNumber,
  parseSeed,
  parseStops,
  PENALTIES,
  PRESETS,
  presetOf,
  SETTING_BY_NAME,
  SLIDERS,
  WATERMARK,
  writeNumber,
  writeStops,
} from "../settings/sampling-settings.js";
import { ownPresetOf } from "../settings/own-presets.js";
import { setUpPresetDialog } from "./preset-dialog.js";
import { saveSettings } from "../turns/persist.js";
import { changed, on, setSettings, setState, state, steered } from "../state.js";
import { pushSettings } from "../turns/live-updates.js";

/**
 * @typedef {{range: HTMLInputElement, box: HTMLInputElement, rail: HTMLElement,
 *   setting: SamplingSetting}} Slider
 * @typedef {(text: string) => {value?: unknown, error?: string}} Parse
 */

/** By the name of the setting. @type {Map<keyof NumberSettings, Slider>} */
const controls = new Map();
/** Errors about what was typed, by the id of the control. @type {Map<string, string>} */
const errors = new Map();
/** The settings below the heading that opens and closes. */
const FOLDED = [...PENALTIES, ...WATERMARK];

export function setUpSampling() {
  for (const setting of SLIDERS)
    byId(FOLDED.includes(setting) ? "penalty-sliders" : "sliders").append(newSlider(setting));
  for (const name of Object.keys(PRESETS)) {
    const button = el("button", "", name);
    button.type = "button";
    button.addEventListener("click", () => choosePreset(PRESETS[name]));
    byId("presets").append(button);
  }
  setUpPresetDialog(choosePreset);
  const maxTokens = SETTING_BY_NAME.max_tokens;
  readOnChange(byId("max_tokens"), (text) => parseNumber(text, maxTokens), "max_tokens");
  const key = SETTING_BY_NAME.hashing_key;
  byId("hashing_key").title = key.help;
  readOnChange(byId("hashing_key"), (text) => parseNumber(text, key), "hashing_key");
  readOnChange(byId("seed"), parseSeed, "seed");
  readOnChange(byId("stop-strings"), parseStops, "stop");
  byId("die").addEventListener("click", () => {
    errors.delete("seed");
    set({ seed: drawSeed() });
  });
  on("settings hello", draw);
  on("turns tokens connection hello", drawHint);
}

/** @param {SamplingSetting} setting */
function newSlider(setting) {
  const { name, label, help, slider } = setting;
  const row = el("div", "sl");
  const text = el("label", "", shortLabel(setting));
  text.title = help;
  const rail = el("span", "rail");
  const range = Object.assign(el("input"), {
    type: "range",
    id: `s-${name}`,
    ...slider,
  });
  const box = Object.assign(el("input"), {
    id: `n-${name}`,
    inputMode: "decimal",
    autocomplete: "off",
  });
  text.htmlFor = range.id;
  box.setAttribute("aria-label", `${label}, value`);
  box.setAttribute("aria-describedby", "sampling-hint-text");
  range.addEventListener("input", () => {
    errors.delete(box.id);
    set({ [name]: Number(range.value) });
  });
  readOnChange(box, (/** @type {string} */ value) => parseNumber(value, setting), name);
  rail.append(range);
  row.append(text, rail, box);
  controls.set(name, { range, box, rail, setting });
  return row;
}

/** Name of a slider: that of a penalty stands under the heading "penalties". @param {SamplingSetting} setting */
const shortLabel = ({ label }) => label.replace(/ penalty$/, "");

/**
 * Read a box when it loses the focus or Enter is pressed; keep the error if it cannot be read.
 *
 * @param {HTMLInputElement} box
 * @param {Parse} parse
 * @param {string} name
 */
function readOnChange(box, parse, name) {
  const read = () => {
    const { value, error } = parse(box.value);
    if (error) errors.set(box.id, error);
    else errors.delete(box.id);
    if (error) changed("settings");
    else set({ [name]: value });
  };
  box.addEventListener("change", read);
  box.addEventListener("keydown", (event) => {
    if (!isEnter(event)) return;
    event.preventDefault();
    read();
  });
}

/** @param {NamedSettings} values */
function choosePreset(values) {
  errors.clear();
  set(values);
}

/** @param {NamedSettings} values */
function set(values) {
  const before = presetName() || state.lastPreset;
  setSettings(values);
  setState({ lastPreset: presetName() || before });
  if (state.problem?.param) setState({ problem: null });
  saveSettings();
  pushSettings();
}

/** Show the settings; a slider whose setting is off is drawn pale. */
function draw() {
  const { settings } = state;
  if (!settings) return;
  const refused = state.problem?.param ?? "";
  setText(byId("h-sampling"), state.own ? `Sampling, ${state.own.target}` : "Sampling");
  for (const [name, control] of controls) {
    drawSlider(control, settings[name], steered()?.segment?.request.params[name]);
    showBox(control.box, writeNumber(settings[name], control.setting), refused === name);
  }
  drawFolded(refused);
  showBox(byId("hashing_key"), String(settings.hashing_key), refused === "hashing_key");
  showBox(byId("max_tokens"), String(settings.max_tokens), refused === "max_tokens");
  showBox(byId("seed"), settings.seed, refused === "seed");
  showBox(byId("stop-strings"), writeStops(settings.stop), refused === "stop");
  drawPresets();
  drawHint();
}

/** Name the folded settings that act beside their heading, and show one that was refused. @param {string} refused */
function drawFolded(refused) {
  const values = FOLDED.filter(({ name, stage, neutral }) => stage && state.settings[name] !== neutral).map(
    (setting) => `${shortLabel(setting)} ${writeNumber(state.settings[setting.name], setting)}`,
  );
  setText(byId("penalties-acting"), values.join(", ") || "none");
  byId("penalties-acting").title = values.join(", ");
  if (FOLDED.some(({ name }) => name === refused)) byId("penalties").open = true;
}

/**
 * `before`: value that the running generation began with, undefined when there is none.
 *
 * @param {Slider} control
 * @param {number} value
 * @param {number | undefined} before
 */
function drawSlider({ range, rail, setting }, value, before) {
  const { off, slider } = setting;
  if (!slider) return;
  const place = (/** @type {number} */ at) => clamp((at - slider.min) / (slider.max - slider.min), 0, 1);
  const isOff = off !== null && value === off.value;
  const from = slider.min < 0 ? place(0) : 0;
  range.value = String(value);
  rail.classList.toggle("off", isOff);
  setVars(range, { "--from": Math.min(from, place(value)), "--v": Math.max(from, place(value)) });
  const words = isOff ? `${off.value}, ${off.words}` : writeNumber(value, setting);
  range.setAttribute("aria-valuetext", words);
  const moved = before !== undefined && before !== value;
  setVars(rail, { "--was-on": moved ? 1 : 0, "--was": moved ? place(before) : 0 });
}

/**
 * @param {HTMLInputElement} box
 * @param {string} text
 * @param {boolean} refused
 */
function showBox(box, text, refused) {
  const wrong = errors.has(box.id);
  if (!wrong && box.value !== text && document.activeElement !== box) box.value = text;
  else if (!wrong && document.activeElement === box && box.dataset.shown !== text) box.value = text;
  box.dataset.shown = text;
  if (wrong || refused) box.setAttribute("aria-invalid", "true");
  else box.removeAttribute("aria-invalid");
}

/** Name of the preset that has the settings, or "". */
const presetName = () => ownPresetOf(state.settings)?.name ?? presetOf(state.settings);

function drawPresets() {
  const { lastPreset } = state;
  const name = presetOf(state.settings);
  const own = ownPresetOf(state.settings)?.name;
  for (const button of byId("presets").children)
    button.setAttribute("aria-pressed", String(button.textContent === name));
  setText(
    byId("preset-note"),
    own || name
      ? (own ?? "")
      : areDefaults()
        ? "Defaults"
        : lastPreset
          ? `${lastPreset}, edited`
          : "Own settings",
  );
}

const areDefaults = () =>
  SLIDERS.every(({ name }) => state.settings[name] === state.hello?.defaults[name]);

/** Write the line under the sliders: an error, or when changes take effect. */
function drawHint() {
  const hint = byId("sampling-hint");
  const text = byId("sampling-hint-text");
  const [error] = errors.values();
  const inFlight = state.hello?.limits.in_flight;
  if (error) {
    hint.dataset.tone = "bad";
    setText(text, error[0].toUpperCase() + error.slice(1));
  } else if (state.replay) {
    hint.dataset.tone = "off";
    setText(text, "The settings at this token");
  } else if (steered() && inFlight !== undefined) {
    hint.dataset.tone = "on";
    const isNext = steered()?.segment?.pace !== null;
    setText(text, `Changes take effect ${isNext ? "on the next token" : `within ${inFlight + 1} tokens`}`);
  } else {
    hint.dataset.tone = "off";
    setText(text, lastSeed());
  }
}

/** Name the seed of the last answer, if it was random. */
function lastSeed() {
  const turn = state.turns.at(-1);
  const { request, edited } = turn?.answers?.[turn.shown]?.segment ?? {};
  const seed = edited ? null : request?.params.seed;
  return seed && state.settings?.seed === "" ? `Last seed ${seed}` : "";
}
