// The log-probability of a token, or of a whole answer, for the prompt as it is and for one that is changed:
// without one of its parts (leave-one-out; Zeiler & Fergus 2014, "occlusion"; Captum's feature ablation), in
// another order, or with attention to a part masked (attention knockout; Geva et al. 2023, "Dissecting Recall
// of Factual Associations in Auto-Regressive Language Models").

import { askOnce } from "../shared/answer-cache.js";
import { spread } from "./windows.js";

/** @typedef {import("./units.js").Unit} Unit */
/** @typedef {import("./windows.js").LayerRange} LayerRange */

/**
 * What is predicted: the tokens of `ids` from `first` on, given those before; `spans`: the interventions under
 * which they were computed.
 *
 * @typedef {{ids: number[], first: number, spans?: Pick<FromPage.Losses, "reached">}} Target
 */

/**
 * What is done to a part of the prompt: left out, swapped with the next one, or attention to it masked.
 *
 * @typedef {"out" | "swap" | "mask"} Change
 */

/** A token with its probability. @typedef {{text: string, share: number}} Likely */

/**
 * What the engine says of a target.
 *
 * @typedef {{logprob: number, likely: Likely[]}} Reading `logprob`: sum over its tokens, in nats; `likely`:
 *   the most likely tokens in the place of the first, best first
 */

/** One question, a cell of the grid: unit `unit` is changed; `window`: in this window of layers, null: in all. @typedef {{unit: number, window: number | null}} Step */

/** Tokens in `Reading.likely`. */
const N_LIKELY = 5;

/** @param {Target} target @param {Pick<FromPage.Losses, "rope" | "knockout">} [changes] @returns {Promise<Reading>} */
async function read({ ids, first, spans }, changes = {}) {
  /** @type {FromPage.Losses} */
  const question = { kind: "losses", ids, first: first - 1, top: N_LIKELY, ...spans, ...changes };
  const { info, arrays } = await askOnce(question);
  const shares = [...arrays.top_logprobs.values.slice(0, N_LIKELY)].map(Math.exp);
  return {
    logprob: [...arrays.logprob.values].reduce((sum, value) => sum + value, 0),
    likely: shares.map((share, i) => {
      const id = arrays.top_ids.values[i];
      return { text: info.pieces?.[id] ?? String(id), share };
    }),
  };
}

/**
 * The target without a unit of the prompt; null if nothing would be left before it.
 *
 * @param {Target} target
 * @param {Unit} unit
 * @returns {Target | null}
 */
export function without({ ids, first }, { from, to }) {
  if (to - from >= first) return null;
  return { ids: [...ids.slice(0, from), ...ids.slice(to)], first: first - (to - from) };
}

/**
 * The target with a unit of the prompt after the next one. What is between them, such as tokens of the chat
 * template, stays there.
 *
 * @param {Target} target
 * @param {Unit} unit
 * @param {Unit} next
 * @returns {Target}
 */
export function swapped({ ids, first }, { from, to }, next) {
  const part = (/** @type {number} */ start, /** @type {number} */ end) => ids.slice(start, end);
  const order = [part(0, from), part(next.from, next.to), part(to, next.from), part(from, to)];
  return { ids: [...order.flat(), ...ids.slice(next.to)], first };
}

/** A measurement, filled in as answers arrive. */
export class Measurement {
  /** With the prompt as it is; null until known. @type {Reading | null} */
  whole = null;
  /**
   * With each unit changed; null: not measured yet, or it cannot be changed. @type {(Reading | null)[]}
   */
  readings;
  /** If attention is masked: the same for each window of layers, [window][unit]. @type {(Reading | null)[][]} */
  cells;
  /** If parts are swapped: without rotary positions, or why the engine cannot do that. @type {Reading | string | null} */
  withoutRope = null;
  /** Number of `steps` that were asked about. */
  nDone = 0;
  isRunning = false;
  /** Why it ended early, or "". */
  problem = "";

  /**
   * `windows`: of layers, in each of which attention is masked; `nLayers`: of the model.
   *
   * @param {Target} target
   * @param {Unit[]} units
   * @param {Change} change
   * @param {{windows: LayerRange[], nLayers: number}} layers
   */
  constructor(target, units, change, { windows, nLayers }) {
    this.target = target;
    this.units = units;
    this.change = change;
    this.windows = change === "mask" ? windows : [];
    this.nLayers = nLayers;
    this.readings = units.map(() => null);
    this.cells = this.windows.map(() => units.map(() => null));
    /** In the order in which they are asked. @type {Step[]} */
    this.steps = [null, ...spread(this.windows.length)]
      .flatMap((window) => units.map((_, unit) => ({ unit, window })))
      .filter(({ unit, window }) => this.hasCell(unit, window));
  }

  /** Is it measured? Heads of one number in all layers have nothing in common. @param {number} i @param {number | null} window */
  hasCell(i, window) {
    return window !== null || this.units[i].head === undefined;
  }

  /** Is attention to one part masked, head by head? */
  get isByHead() {
    return this.units.at(-1)?.head !== undefined;
  }

  get isComplete() {
    return this.nDone === this.steps.length;
  }

  /** Unit i changed, in a window of layers or, if null, in all. @param {number} i @param {number | null} [window] */
  reading(i, window = null) {
    return (window === null ? this.readings : this.cells[window])[i] ?? null;
  }

  /**
   * By how much the log-probability falls with unit i changed, in nats; null: unknown.
   *
   * @param {number} i
   * @param {number | null} [window]
   */
  effect(i, window = null) {
    const reading = this.reading(i, window);
    return this.whole && reading && this.whole.logprob - reading.logprob;
  }

  /** The effect that is largest, up or down, in nats; 0 if there is none. */
  get strongest() {
    const effects = this.steps.map(({ unit, window }) => this.effect(unit, window) ?? 0);
    return effects.reduce((most, effect) => (Math.abs(effect) > Math.abs(most) ? effect : most), 0);
  }

  /** Size of the strongest effect; 1 if there is none. */
  get largest() {
    return Math.abs(this.strongest) || 1;
  }

  /** Sum of the effects of all units, or of each head, in a window; null until all are known. @param {number} window */
  sum(window) {
    const summed = [...this.units.keys()].slice(this.isByHead ? 1 : 0);
    const effects = summed.map((i) => this.effect(i, window));
    return effects.every((effect) => effect !== null) ? effects.reduce((sum, effect) => sum + effect, 0) : null;
  }

  /** @param {Step} step @returns {Promise<Reading | null>} */
  async #read({ unit: i, window }) {
    const unit = this.units[i];
    if (this.change === "mask") return this.#readMasked(unit, window);
    if (this.change === "out") {
      const rest = without(this.target, unit);
      return rest && read(rest);
    }
    const next = this.units[i + 1];
    return next ? read(swapped(this.target, unit, next)) : null;
  }

  /** @param {Unit} unit @param {number | null} window */
  #readMasked({ from, to, head }, window) {
    if (from === 0 && to >= this.target.first) return null; // nothing would be left to attend to
    const { first, end } = window === null ? { first: 0, end: this.nLayers } : this.windows[window];
    return read(this.target, { knockout: { first: from, end: to, first_layer: first, end_layer: end, head } });
  }

  async #readWithoutRope() {
    try {
      return await read(this.target, { rope: false });
    } catch (error) {
      return /** @type {Problem} */ (error).message;
    }
  }

  /**
   * Measure what is not known yet; `onStep` is called after each answer.
   *
   * @param {AbortSignal} signal
   * @param {() => void} onStep
   */
  async run(signal, onStep) {
    this.isRunning = true;
    this.problem = "";
    try {
      this.whole ??= await read(this.target);
      onStep();
      if (this.change === "swap") this.withoutRope ??= await this.#readWithoutRope();
      while (!this.isComplete && !signal.aborted) {
        const step = this.steps[this.nDone];
        const reading = await this.#read(step);
        (step.window === null ? this.readings : this.cells[step.window])[step.unit] = reading;
        this.nDone += 1;
        onStep();
      }
    } catch (error) {
      this.problem = /** @type {Problem} */ (error).message;
    } finally {
      this.isRunning = false;
      onStep();
    }
  }
}
