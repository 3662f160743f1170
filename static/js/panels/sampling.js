// The sampling panel: sliders with boxes, presets, seed, length, stop strings.

import { byId, clamp, el, setText, setVars } from "./dom.js";
import {
  drawSeed,
  MAX_TOKENS,
  parseNumber,
  parseSeed,
  parseStops,
  PRESETS,
  presetOf,
  SLIDERS,
  writeNumber,
  writeStops,
} from "./params.js";
import { saveSettings } from "./persist.js";
import { changed, on, state } from "./state.js";
import { pushSettings } from "./updates.js";

/** name → {range, box, rail, slider} */
const controls = new Map();
/** control id → what is wrong with what was typed there */
const errors = new Map();
let lastPreset = "";

export function setUpSampling() {
  for (const slider of SLIDERS) byId("sliders").append(newSlider(slider));
  for (const name of Object.keys(PRESETS)) {
    const button = el("button", "", name);
    button.type = "button";
    button.addEventListener("click", () => choosePreset(name));
    byId("presets").append(button);
  }
  typed("max_tokens", (text) => parseNumber(text, MAX_TOKENS), "max_tokens");
  typed("seed", parseSeed, "seed");
  typed("stop-strings", parseStops, "stop");
  byId("die").addEventListener("click", () => {
    errors.delete("seed");
    set({ seed: drawSeed() });
  });
  on("settings hello", draw);
  on("turns line hello", drawHint);
}

function newSlider(slider) {
  const { name, label, from, to, step } = slider;
  const row = el("div", "sl");
  const text = el("label", "", label);
  const rail = el("span", "rail");
  const range = Object.assign(el("input"), {
    type: "range",
    id: `s-${name}`,
    min: from,
    max: to,
    step,
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
  typed(box, (value) => parseNumber(value, slider), name);
  rail.append(range);
  row.append(text, rail, box);
  controls.set(name, { range, box, rail, slider });
  return row;
}

/** A box that is read when it is left or Enter is pressed, and told off when it cannot be. */
function typed(box, parse, name) {
  const node = typeof box === "string" ? byId(box) : box;
  const read = () => {
    const { value, error } = parse(node.value);
    if (error) errors.set(node.id, error);
    else errors.delete(node.id);
    if (error) changed("settings");
    else set({ [name]: value });
  };
  node.addEventListener("change", read);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    read();
  });
}

function choosePreset(name) {
  for (const { box } of controls.values()) errors.delete(box.id);
  set(PRESETS[name]);
}

function set(values) {
  Object.assign(state.settings, values);
  if (state.problem?.param) state.problem = null;
  saveSettings();
  pushSettings();
  changed("settings");
}

/** Show the settings; a slider whose setting does nothing is drawn pale. */
function draw() {
  const { settings } = state;
  if (!settings) return;
  const refused = state.problem?.param ?? "";
  for (const [name, { range, box, rail, slider }] of controls) {
    const value = settings[name];
    const share = clamp((value - slider.from) / (slider.to - slider.from), 0, 1);
    range.value = value;
    rail.classList.toggle("off", value === slider.off);
    setVars(range, { "--v": share });
    range.setAttribute(
      "aria-valuetext",
      value === slider.off ? slider.offText : writeNumber(value, slider),
    );
    showBox(box, writeNumber(value, slider), refused === name);
    const was = state.active?.segment.request.params[name];
    const moved = was !== undefined && was !== value;
    setVars(rail, {
      "--was-on": moved ? 1 : 0,
      "--was": moved ? clamp((was - slider.from) / (slider.to - slider.from), 0, 1) : 0,
    });
  }
  showBox(byId("max_tokens"), String(settings.max_tokens), refused === "max_tokens");
  showBox(byId("seed"), settings.seed, refused === "seed");
  showBox(byId("stop-strings"), writeStops(settings.stop), refused === "stop");
  drawPresets();
  drawHint();
}

function showBox(box, text, refused) {
  const wrong = errors.has(box.id);
  if (!wrong && box.value !== text && document.activeElement !== box) box.value = text;
  else if (!wrong && document.activeElement === box && box.dataset.shown !== text) box.value = text;
  box.dataset.shown = text;
  if (wrong || refused) box.setAttribute("aria-invalid", "true");
  else box.removeAttribute("aria-invalid");
}

function drawPresets() {
  const name = presetOf(state.settings);
  if (name) lastPreset = name;
  for (const button of byId("presets").children)
    button.setAttribute("aria-pressed", String(button.textContent === name));
  setText(
    byId("preset-note"),
    name
      ? ""
      : asServed()
        ? "The server’s defaults"
        : lastPreset
          ? `${lastPreset}, edited`
          : "Own settings",
  );
}

/** Are these the settings that the server proposes? */
const asServed = () =>
  SLIDERS.every(({ name }) => state.settings[name] === state.hello?.defaults[name]);

/** One line under the sliders: an error, or when a change acts. */
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
    setText(text, "As they were at this token");
  } else if (state.active && inFlight !== undefined) {
    hint.dataset.tone = "on";
    setText(text, `Changes act at once, within ${inFlight + 1} tokens`);
  } else {
    hint.dataset.tone = "off";
    setText(text, usedSeed());
  }
}

/** The seed of the last answer, when it was drawn by chance. */
function usedSeed() {
  const turn = state.turns.at(-1);
  const seed = turn?.answers?.[turn.shown]?.segment?.request?.params.seed;
  return seed && state.settings?.seed === "" ? `Last seed ${seed}` : "";
}
