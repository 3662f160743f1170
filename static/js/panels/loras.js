// How strong the adapters are that are loaded beside the model: a slider for each, for what is being
// written and every answer after. Hidden where there are none.

import { byId, el } from "./dom.js";
import { plural } from "./format.js";
import { drawNumber, drawRange, newNumber, newRange } from "./look/reachbar.js";
import * as desk from "./reachdesk.js";
import { on, state } from "./state.js";

/** What the server takes, and the part of it that a slider has. */
const STRENGTH = { label: "strength", least: -8, most: 8 };
const SLIDER = { min: 0, max: 2, step: 0.05 };

const panel = byId("loras");
/** name → {node, range, box} */
const rows = new Map();

export function setUpLoras() {
  byId("loras-undo").addEventListener("click", desk.undo);
  byId("loras-off").addEventListener("click", desk.lorasOff);
  on("hello reach replay", draw);
}

function draw() {
  const loras = state.hello?.model.loras ?? [];
  const names = loras.map(({ name }) => name);
  if (String(names) !== String([...rows.keys()])) build(loras);
  panel.hidden = !names.length;
  const { setting, past } = state.reach;
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

/** Was the last step one of an adapter? Others are undone where they can be seen, in Reach. */
const isOwn = (last, setting) =>
  !!last && JSON.stringify(last.setting.loras) !== JSON.stringify(setting.loras);

const wordsOf = (strength) =>
  strength === 0 ? "off" : strength === 1 ? "1, as trained" : String(strength);

function build(loras) {
  for (const { node } of rows.values()) node.remove();
  rows.clear();
  loras.forEach((lora, i) => {
    const row = newRow(lora, `lora-${i}`);
    rows.set(lora.name, row);
    panel.append(row.node);
  });
}

function newRow({ name, rank, modules, parameters }, id) {
  const node = el("div", "sl");
  const label = node.appendChild(el("label", "", name));
  label.htmlFor = id;
  const size = `rank ${rank} in ${plural(modules, "module")}, ${plural(parameters, "weight")}`;
  label.title = `${name}: ${size}; 1 is as it was trained`;
  const range = newRange({ ...SLIDER, id });
  let gesture = null;
  range.input.addEventListener("input", ({ target }) => {
    gesture ??= Symbol(name);
    desk.setLora(name, Number(target.value), gesture);
  });
  range.input.addEventListener("change", () => (gesture = null));
  const box = newNumber(`${name}, strength`, STRENGTH, (value) => desk.setLora(name, value));
  node.append(range.node, box);
  return { node, range, box };
}
