// Leave-one-out: the log-probability of a token, or of the whole answer, with and without each part of
// the prompt (Zeiler & Fergus 2014, "occlusion"; Captum's feature ablation).

import { askOnce } from "../shared/answer-cache.js";

/** @typedef {import("./units.js").Unit} Unit */

/**
 * What is predicted: the tokens of `ids` from `first` on, given those before.
 *
 * @typedef {{ids: number[], first: number}} Target
 */

/** Sum of the log-probabilities of a target, in nats. @param {Target} target */
async function logprobOf({ ids, first }) {
  /** @type {FromPage.Losses} */
  const question = { kind: "losses", ids, first: first - 1, top: 1 };
  const { arrays } = await askOnce(question);
  return [...arrays.logprob.values].reduce((sum, value) => sum + value, 0);
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

/** A measurement, filled in as answers arrive. */
export class Measurement {
  /** With the whole prompt; null until known. @type {number | null} */
  whole = null;
  /** Without each unit; null: not measured yet, or nothing would be left. @type {(number | null)[]} */
  left;
  /** Number of units that were asked about. */
  nDone = 0;
  isRunning = false;
  /** Why it ended early, or "". */
  problem = "";

  /** @param {Target} target @param {Unit[]} units */
  constructor(target, units) {
    this.target = target;
    this.units = units;
    this.left = units.map(() => null);
  }

  get isComplete() {
    return this.nDone === this.units.length;
  }

  /** By how much the log-probability falls without a unit, in nats; null: unknown. @param {number} i */
  effect(i) {
    const left = this.left[i];
    return this.whole === null || left === null ? null : this.whole - left;
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
      this.whole ??= await logprobOf(this.target);
      onStep();
      while (!this.isComplete && !signal.aborted) {
        const rest = without(this.target, this.units[this.nDone]);
        this.left[this.nDone] = rest && (await logprobOf(rest));
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
