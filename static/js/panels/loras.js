// LoRA adapters: a strength slider for each, which acts on the current run and every later answer.
// Hidden if no adapter is loaded.

import { byId, el } from "../ui/dom.js";
import { plural } from "../ui/format.js";
import { drawNumber, drawRange, newNumber, newRange } from "../look/reach/factor-bar.js";
import * as store from "../interventions/intervention-store.js";
import { LORA_STRENGTH } from "../interventions/interventions.js";
import { on, state } from "../state.js";

/** Range of the slider, which is narrower than what the server accepts. */
const SLIDER = { min: 0, max: 2, step: 0.05 };

const panel = byId("loras");
/** By the name of the adapter. @type {Map<string, ReturnType<typeof newRow>>} */
const rows = new Map();

export function setUpLoras() {
  byId("loras-undo").addEventListener("click", store.undo);
  byId("loras-off").addEventListener("click", store.clearLoras);
  on("hello interventions replay", draw);
}

function draw() {
  const loras = state.hello?.model.loras ?? [];
  const names = loras.map(({ name }) => name);
  if (String(names) !== String([...rows.keys()])) build(loras);
  panel.hidden = !names.length;
  const { setting, past } = state.interventions;
  const free = !state.replay;
  for (const [name, { range, box }] of rows) {
    const strength = setting.loras[name] ?? 0;
    drawRange(range, strength, wordsOf(strength), strength === 0);
    drawNumber(box, strength);
    range.input.disabled = box.disabled = !free;
  }
  byId("loras-undo").disabled = !free || !isOwn(past.at(-1), setting);
  byId("loras-off").disabled = !free || !Object.keys(setting.loras).length;
}

/**
 * Did the last step change an adapter? Other steps are undone in Reach in, where they are shown.
 *
 * @param {InterventionStep | undefined} last
 * @param {Setting} setting
 */
const isOwn = (last, setting) =>
  !!last && JSON.stringify(last.setting.loras) !== JSON.stringify(setting.loras);

/** @param {number} strength */
const wordsOf = (strength) =>
  strength === 0 ? "off" : strength === 1 ? "1, as trained" : String(strength);

/** @param {ToPage.LoraInfo[]} loras */
function build(loras) {
  for (const { node } of rows.values()) node.remove();
  rows.clear();
  loras.forEach((lora, i) => {
    const row = newRow(lora, `lora-${i}`);
    rows.set(lora.name, row);
    panel.append(row.node);
  });
}

/** @param {ToPage.LoraInfo} lora @param {string} id */
function newRow({ name, rank, modules, parameters }, id) {
  const node = el("div", "sl");
  const label = node.appendChild(el("label", "", name));
  label.htmlFor = id;
  const size = `rank ${rank} in ${plural(modules, "module")}, ${plural(parameters, "weight")}`;
  label.title = `${name}: ${size}; 1 is the trained strength`;
  const range = newRange({ ...SLIDER, id });
  /** @type {symbol | null} */
  let gesture = null;
  range.input.addEventListener("input", () => {
    gesture ??= Symbol(name);
    store.setLora(name, Number(range.input.value), gesture);
  });
  range.input.addEventListener("change", () => (gesture = null));
  const box = newNumber(`${name}, strength`, LORA_STRENGTH, (/** @type {number} */ value) => store.setLora(name, value));
  node.append(range.node, box);
  return { node, range, box };
}
