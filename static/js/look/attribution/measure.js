// The log-probability of a token, or of a whole answer, for the prompt as it is and for one that is changed:
// without one of its parts (leave-one-out; Zeiler & Fergus 2014, "occlusion"; Captum's feature ablation), or
// in another order.

import { askOnce } from "../shared/answer-cache.js";

/** @typedef {import("./units.js").Unit} Unit */

/**
 * What is predicted: the tokens of `ids` from `first` on, given those before.
 *
 * @typedef {{ids: number[], first: number}} Target
 */

/** What is done to a part of the prompt: left out, or swapped with the next one. @typedef {"out" | "swap"} Change */

/** A token with its probability. @typedef {{text: string, share: number}} Likely */

/**
 * What the engine says of a target.
 *
 * @typedef {{logprob: number, likely: Likely[]}} Reading `logprob`: sum over its tokens, in nats; `likely`:
 *   the most likely tokens in the place of the first, best first
 */

/** Tokens in `Reading.likely`. */
const N_LIKELY = 5;

/** @param {Target} target @param {boolean} [rope] with rotary positions @returns {Promise<Reading>} */
async function read({ ids, first }, rope = true) {
  /** @type {FromPage.Losses} */
  const question = { kind: "losses", ids, first: first - 1, top: N_LIKELY, ...(!rope && { rope }) };
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
  /** If parts are swapped: without rotary positions, or why the engine cannot do that. @type {Reading | string | null} */
  withoutRope = null;
  /** Number of units that were asked about. */
  nDone = 0;
  isRunning = false;
  /** Why it ended early, or "". */
  problem = "";

  /** @param {Target} target @param {Unit[]} units @param {Change} change */
  constructor(target, units, change) {
    this.target = target;
    this.units = units;
    this.change = change;
    this.readings = units.map(() => null);
  }

  get isComplete() {
    return this.nDone === this.units.length;
  }

  /** By how much the log-probability falls with unit i changed, in nats; null: unknown. @param {number} i */
  effect(i) {
    const reading = this.readings[i];
    return this.whole && reading && this.whole.logprob - reading.logprob;
  }

  /** The target with unit i changed; null: it cannot be. @param {number} i */
  #changed(i) {
    const unit = this.units[i];
    if (this.change === "out") return without(this.target, unit);
    const next = this.units[i + 1];
    return next ? swapped(this.target, unit, next) : null;
  }

  async #readWithoutRope() {
    try {
      return await read(this.target, false);
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
        const target = this.#changed(this.nDone);
        this.readings[this.nDone] = target && (await read(target));
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
