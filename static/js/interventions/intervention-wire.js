// The page's intervention setting as data: conversion to the wire format and back. No DOM access.

import { normalize } from "./interventions.js";

/**
 * Setting without interventions. Unlike the wire format, a setting keeps muted and unfinished entries:
 *
 *   factors  by place: "head 2.3", "attention 2", "mlp 2"; without those that are 1. An expert,
 *            "expert 2.3", can only be off: its factor is 0
 *   steer    [{key, layer, toward, away, strength, muted}]
 *   patch    [{key, layer, position, prompt, token, muted, here, there}]; the last two are the
 *            texts of the two tokens
 *   loras    adapter strengths by name; without those that are 0
 *
 * @type {Setting}
 */
export const NO_INTERVENTIONS = { factors: {}, steer: [], patch: [], loras: {} };

let lastKey = 0;
/** Return a new key for a vector or a patch. */
export const newKey = () => `${Date.now().toString(36)} ${(lastKey += 1)}`;

/** @param {Setting} setting */
export const isSettingEmpty = ({ factors, steer, patch, loras }) =>
  ![...Object.keys(factors), ...steer, ...patch, ...Object.keys(loras)].length;

const PLACE = /^(head|attention|mlp|expert) (\d+)(?:\.(\d+))?$/;

/** Name of the place of an expert. @param {number} layer @param {number} expert */
export const expertPlace = (layer, expert) => `expert ${layer}.${expert}`;

/** Is this the name of a place that may have a factor? @param {string} place */
export const isPlace = (place) => PLACE.test(place);

/** Return [kind, layer, head or expert] of a place. @param {string} place */
function parsePlace(place) {
  const found = PLACE.exec(place);
  if (!found) throw new TypeError(`"${place}" is no place of an intervention`);
  return found.slice(1);
}

/** Return the wire format of a setting. @param {Setting} setting */
export function toWire({ factors, steer, patch, loras }) {
  /** @type {Required<Pick<FromPage.Interventions, "heads" | "attention" | "mlp" | "experts">>} */
  const lists = { heads: [], attention: [], mlp: [], experts: [] };
  for (const [place, factor] of Object.entries(factors)) {
    const [kind, layer, head] = parsePlace(place);
    if (kind === "expert") lists.experts.push({ layer: Number(layer), expert: Number(head) });
    else if (kind === "head") lists.heads.push({ layer: Number(layer), head: Number(head), factor });
    else lists[kind === "mlp" ? "mlp" : "attention"].push({ layer: Number(layer), factor });
  }
  /** @param {Keyed} keyed */
  const on = ({ muted }) => !muted;
  return normalize({
    ...lists,
    steer: steer.filter(on).filter(({ toward }) => toward !== ""),
    patch: patch.filter(on),
    loras: Object.entries(loras).map(([name, strength]) => ({ name, strength })),
  });
}

/**
 * Return the setting without patches beyond the first `nTokens` tokens.
 *
 * @param {Setting} setting
 * @param {number} nTokens
 */
export const withPatchesUpTo = (setting, nTokens) => ({
  ...setting,
  patch: setting.patch.filter(({ position }) => position < nTokens),
});

/**
 * Return the setting without entries that a model of these sizes does not have.
 *
 * @param {Setting} setting
 * @param {ToPage.PageModelInfo} model
 */
export function fitToModel(setting, model) {
  const { n_layers: nLayers, n_heads: nHeads, n_experts: nExperts = 0, loras = [] } = model;
  const there = (/** @type {[string, number]} */ [place]) => {
    const [kind, layer, head = 0] = parsePlace(place);
    return Number(layer) < nLayers && Number(head) < (kind === "expert" ? nExperts : nHeads);
  };
  /** @param {{layer: number}} one */
  const below = ({ layer }) => layer < nLayers;
  const loaded = (/** @type {[string, number]} */ [lora]) => loras.some(({ name }) => name === lora);
  return {
    factors: Object.fromEntries(Object.entries(setting.factors).filter(there)),
    steer: setting.steer.filter(below),
    patch: setting.patch.filter(below),
    loras: Object.fromEntries(Object.entries(setting.loras).filter(loaded)),
  };
}

/**
 * Return the setting of these interventions; none is muted.
 *
 * @param {FromPage.Interventions} reach
 */
export function fromWire(reach) {
  const { heads = [], attention = [], mlp = [], steer = [], patch = [], loras = [], experts = [] } = reach;
  /** @type {Record<string, number>} */
  const factors = {};
  for (const { layer, head, factor } of heads) factors[`head ${layer}.${head}`] = factor;
  for (const { layer, expert } of experts) factors[expertPlace(layer, expert)] = 0;
  for (const { layer, factor } of attention) factors[`attention ${layer}`] = factor;
  for (const { layer, factor } of mlp) factors[`mlp ${layer}`] = factor;
  const own = () => ({ key: newKey(), muted: false });
  return {
    factors,
    steer: steer.map((one) => ({ ...one, ...own() })),
    patch: patch.map((one) => ({ here: "", there: "", ...one, ...own() })),
    loras: Object.fromEntries(loras.map(({ name, strength }) => [name, strength])),
  };
}

/** Attention and MLP of a layer. @param {string} layer */
const halves = (layer) => [`attention ${layer}`, `mlp ${layer}`];

/**
 * Factor of a place; for "layer 2" that of both halves, or null when they differ.
 *
 * @param {Setting} setting
 * @param {string} place
 */
export function factorOf({ factors }, place) {
  const layer = /^layer (\d+)$/.exec(place)?.[1];
  if (layer === undefined) return factors[place] ?? 1;
  const [a, b] = halves(layer).map((half) => factors[half] ?? 1);
  return a === b ? a : null;
}

/**
 * Return the setting with another factor at a place.
 *
 * @param {Setting} setting
 * @param {string} place
 * @param {number} factor
 */
export function withFactor(setting, place, factor) {
  const layer = /^layer (\d+)$/.exec(place)?.[1];
  const factors = { ...setting.factors };
  for (const each of layer === undefined ? [place] : halves(layer)) {
    if (factor === 1) delete factors[each];
    else factors[each] = factor;
  }
  return { ...setting, factors };
}

/**
 * Return the setting with exactly these experts off.
 *
 * @param {Setting} setting
 * @param {FromPage.ExpertOff[]} off
 */
export function withExpertsOff(setting, off) {
  const others = Object.entries(setting.factors).filter(([place]) => !place.startsWith("expert "));
  const own = off.map(({ layer, expert }) => [expertPlace(layer, expert), 0]);
  return { ...setting, factors: Object.fromEntries([...others, ...own]) };
}

/**
 * Return the setting with another strength of an adapter.
 *
 * @param {Setting} setting
 * @param {string} name
 * @param {number} strength
 */
export function withLora(setting, name, strength) {
  const { [name]: _, ...others } = setting.loras;
  return { ...setting, loras: strength === 0 ? others : { ...others, [name]: strength } };
}
