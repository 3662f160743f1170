// Figures of the expert use of all layers.

import { relativeLoad, expertChoice, loadBalance } from "../../turns/expert-use.js";
import { count } from "../../ui/format.js";

/**
 * Return the MoE layers, lowest first, from an ExpertUse (turns/expert-use.js) with `n` experts
 * each:
 * {layer, tokens, given, gates} with the fields of `loadBalance`.
 *
 * @param {Answer["use"]} use
 * @param {number} n
 */
export const layersOf = (use, n) =>
  use.layers.map((layer) => {
    const own = use.of(layer, n);
    // Only layers are here of which some expert was chosen.
    const { busiest, load, ...balance } = loadBalance(own.given);
    return { layer, ...own, ...balance, busiest: busiest ?? 0, load: load ?? 0 };
  });

/**
 * Summarise all layers of `layersOf`: `n` experts, number `never` chosen, mean `evenness`, the
 * `least` even layer and the one with the `busiest` expert.
 *
 * @param {ExpertLayer[]} layers
 */
export function totalOf(layers) {
  /** @param {(layer: ExpertLayer) => number} value */
  const sum = (value) => layers.reduce((total, layer) => total + value(layer), 0);
  /** @param {(a: ExpertLayer, b: ExpertLayer) => boolean} better */
  const first = (better) => layers.reduce((best, layer) => (better(layer, best) ? layer : best));
  return {
    n: sum(({ given }) => given.length),
    never: sum(({ never }) => never.length),
    evenness: layers[0].evenness === null ? null : sum(({ evenness }) => evenness ?? 0) / layers.length,
    least: first((a, b) => (a.evenness ?? 0) < (b.evenness ?? 0)),
    busiest: first((a, b) => a.load > b.load),
  };
}

/**
 * One expert of a layer: {times, share (of all choices), load, gate (mean)}.
 *
 * @param {ExpertLayer} layer
 * @param {number} expert
 */
export function expertOf({ given, gates, choices }, expert) {
  const times = given[expert];
  return {
    times,
    share: choices ? times / choices : 0,
    load: relativeLoad(times, choices, given.length),
    gate: times ? gates[expert] / times : null,
  };
}

/** Gates of one token in a layer, by expert. @param {Stats | null} stats @param {number} layer */
export function gatesOf(stats, layer) {
  const route = expertChoice(stats, layer);
  return new Map(route?.experts.map((expert, i) => [expert, route.gates[i] ?? NaN]));
}

/** @param {string} name */
const whole = (name) => ({ name, format: count });
const COLUMNS = [
  "layer",
  "expert",
  whole("chosen"),
  "share of choices",
  "× mean",
  "mean gate",
  "gate at the token",
  "evenness",
  "unused",
  "busiest",
  "busiest × mean",
];

/**
 * Table: a row per layer, then one per expert; the last layer first, as in the picture.
 *
 * @param {ExpertLayer[]} layers
 * @param {Stats | null} stats
 */
export function numbersOf(layers, stats) {
  const down = layers.toReversed();
  /** @param {ExpertLayer} layer */
  const of = ({ layer, choices, evenness, never, busiest, load }) => {
    return [layer, null, choices, null, null, null, null, evenness, never.length, busiest, load];
  };
  const experts = down.flatMap((layer) => {
    const gates = gatesOf(stats, layer.layer);
    return layer.given.map((_, expert) => {
      const { times, share, load, gate } = expertOf(layer, expert);
      const own = [times, share, load, gate, gates.get(expert) ?? null];
      return [layer.layer, expert, ...own, null, null, null, null];
    });
  });
  return { columns: COLUMNS, rows: [...down.map(of), ...experts] };
}
