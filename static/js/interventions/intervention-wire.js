// What a hand has set inside the model, as data: to the wire, and back. Nothing here touches the
// page.

import { normal } from "./reach.js";

/**
 * What is set. Unlike the wire's interventions it keeps what is muted or not finished.
 *
 *   factors  by place: "head 2.3", "attention 2", "mlp 2"; those that are not 1
 *   steer    [{key, layer, toward, away, strength, muted}]
 *   patch    [{key, layer, position, prompt, token, muted, here, there}]; the last two are the
 *            words of the two tokens
 *   loras    strengths of adapters by name; those that are not 0
 *
 * @typedef {{
 *   factors: Object<string, number>, steer: object[], patch: object[], loras: Object<string, number>
 * }} Setting
 */

/** @type {Setting} */
export const NONE = { factors: {}, steer: [], patch: [], loras: {} };

let lastKey = 0;
/** A name for a vector or a patch. */
export const newKey = () => `${Date.now().toString(36)} ${(lastKey += 1)}`;

export const isClear = ({ factors, steer, patch, loras }) =>
  ![...Object.keys(factors), ...steer, ...patch, ...Object.keys(loras)].length;

const PLACE = /^(head|attention|mlp) (\d+)(?:\.(\d+))?$/;

/** The interventions that a setting asks for. */
export function wireOf({ factors, steer, patch, loras }) {
  const lists = { heads: [], attention: [], mlp: [] };
  for (const [place, factor] of Object.entries(factors)) {
    const [, kind, layer, head] = PLACE.exec(place);
    if (kind === "head") lists.heads.push({ layer: Number(layer), head: Number(head), factor });
    else lists[kind].push({ layer: Number(layer), factor });
  }
  const on = ({ muted }) => !muted;
  return normal({
    ...lists,
    steer: steer.filter(on).filter(({ toward }) => toward !== ""),
    patch: patch.filter(on),
    loras: Object.entries(loras).map(([name, strength]) => ({ name, strength })),
  });
}

/** The setting with those patches alone that can act on a request of `nTokens` tokens. */
export const patchable = (setting, nTokens) => ({
  ...setting,
  patch: setting.patch.filter(({ position }) => position < nTokens),
});

/** The setting with what a model of these sizes has. */
export function fitting(setting, { n_layers: nLayers, n_heads: nHeads, loras = [] }) {
  const there = ([place]) => {
    const [, , layer, head = 0] = PLACE.exec(place);
    return Number(layer) < nLayers && Number(head) < nHeads;
  };
  const below = ({ layer }) => layer < nLayers;
  const loaded = ([lora]) => loras.some(({ name }) => name === lora);
  return {
    factors: Object.fromEntries(Object.entries(setting.factors).filter(there)),
    steer: setting.steer.filter(below),
    patch: setting.patch.filter(below),
    loras: Object.fromEntries(Object.entries(setting.loras).filter(loaded)),
  };
}

/** The setting that asks for these interventions; nothing of it is muted. */
export function settingOf(reach) {
  const { heads = [], attention = [], mlp = [], steer = [], patch = [], loras = [] } = reach;
  const factors = {};
  for (const { layer, head, factor } of heads) factors[`head ${layer}.${head}`] = factor;
  for (const { layer, factor } of attention) factors[`attention ${layer}`] = factor;
  for (const { layer, factor } of mlp) factors[`mlp ${layer}`] = factor;
  const own = (one) => ({ ...one, key: newKey(), muted: false });
  const named = (one) => ({ here: "", there: "", ...own(one) });
  return {
    factors,
    steer: steer.map(own),
    patch: patch.map(named),
    loras: Object.fromEntries(loras.map(({ name, strength }) => [name, strength])),
  };
}

/** Both halves of a layer. */
const halves = (layer) => [`attention ${layer}`, `mlp ${layer}`];

/** The factor of a place; of "layer 2" what both halves have, null when they differ. */
export function factorOf({ factors }, place) {
  const layer = /^layer (\d+)$/.exec(place)?.[1];
  if (layer === undefined) return factors[place] ?? 1;
  const [a, b] = halves(layer).map((half) => factors[half] ?? 1);
  return a === b ? a : null;
}

/** The setting with another factor at a place. */
export function withFactor(setting, place, factor) {
  const layer = /^layer (\d+)$/.exec(place)?.[1];
  const factors = { ...setting.factors };
  for (const each of layer === undefined ? [place] : halves(layer)) {
    if (factor === 1) delete factors[each];
    else factors[each] = factor;
  }
  return { ...setting, factors };
}

/** The setting with another strength of an adapter. */
export function withLora(setting, name, strength) {
  const { [name]: _, ...others } = setting.loras;
  return { ...setting, loras: strength === 0 ? others : { ...others, [name]: strength } };
}
