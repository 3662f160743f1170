// @ts-nocheck
// The page's intervention setting as data: conversion to the wire format and back. No DOM access.

import { normalize } from "./interventions.js";

/**
 * Intervention setting of the page. Unlike the wire format it keeps muted and unfinished entries.
 *
 *   factors  by place: "head 2.3", "attention 2", "mlp 2"; without those that are 1
 *   steer    [{key, layer, toward, away, strength, muted}]
 *   patch    [{key, layer, position, prompt, token, muted, here, there}]; the last two are the
 *            texts of the two tokens
 *   loras    adapter strengths by name; without those that are 0
 *
 * @typedef {{
 *   factors: Object<string, number>,
 *   steer: object[],
 *   patch: object[],
 *   loras: Object<string, number>,
 * }} Setting
 */

/** @type {Setting} */
export const NO_INTERVENTIONS = { factors: {}, steer: [], patch: [], loras: {} };

let lastKey = 0;
/** Return a new key for a vector or a patch. */
export const newKey = () => `${Date.now().toString(36)} ${(lastKey += 1)}`;

export const isSettingEmpty = ({ factors, steer, patch, loras }) =>
  ![...Object.keys(factors), ...steer, ...patch, ...Object.keys(loras)].length;

const PLACE = /^(head|attention|mlp) (\d+)(?:\.(\d+))?$/;

/** Return the wire format of a setting. */
export function toWire({ factors, steer, patch, loras }) {
  const lists = { heads: [], attention: [], mlp: [] };
  for (const [place, factor] of Object.entries(factors)) {
    const [, kind, layer, head] = PLACE.exec(place);
    if (kind === "head") lists.heads.push({ layer: Number(layer), head: Number(head), factor });
    else lists[kind].push({ layer: Number(layer), factor });
  }
  const on = ({ muted }) => !muted;
  return normalize({
    ...lists,
    steer: steer.filter(on).filter(({ toward }) => toward !== ""),
    patch: patch.filter(on),
    loras: Object.entries(loras).map(([name, strength]) => ({ name, strength })),
  });
}

/** Return the setting without patches beyond the first `nTokens` tokens. */
export const withPatchesUpTo = (setting, nTokens) => ({
  ...setting,
  patch: setting.patch.filter(({ position }) => position < nTokens),
});

/** Return the setting without entries that a model of these sizes does not have. */
export function fitToModel(setting, { n_layers: nLayers, n_heads: nHeads, loras = [] }) {
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

/** Return the setting of these interventions; none is muted. */
export function fromWire(reach) {
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

/** Attention and MLP of a layer. */
const halves = (layer) => [`attention ${layer}`, `mlp ${layer}`];

/** Factor of a place; for "layer 2" that of both halves, or null when they differ. */
export function factorOf({ factors }, place) {
  const layer = /^layer (\d+)$/.exec(place)?.[1];
  if (layer === undefined) return factors[place] ?? 1;
  const [a, b] = halves(layer).map((half) => factors[half] ?? 1);
  return a === b ? a : null;
}

/** Return the setting with another factor at a place. */
export function withFactor(setting, place, factor) {
  const layer = /^layer (\d+)$/.exec(place)?.[1];
  const factors = { ...setting.factors };
  for (const each of layer === undefined ? [place] : halves(layer)) {
    if (factor === 1) delete factors[each];
    else factors[each] = factor;
  }
  return { ...setting, factors };
}

/** Return the setting with another strength of an adapter. */
export function withLora(setting, name, strength) {
  const { [name]: _, ...others } = setting.loras;
  return { ...setting, loras: strength === 0 ? others : { ...others, [name]: strength } };
}
