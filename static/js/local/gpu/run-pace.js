// Pace of one run: when its next token is computed, and whether it may be told (gpu/pace.py).

import { InvalidRequest } from "../shared/errors.js";

/** @typedef {{pace?: number | null, steps?: number}} PaceChange */

/**
 * Throw InvalidRequest for {pace, steps} out of range.
 *
 * @param {PaceChange} change
 * @param {RequestLimits["pace"]} limits
 */
export function checkPace({ pace, steps = 0 }, { rate: [least, most], steps: mostSteps }) {
  if (pace !== null && pace !== undefined && pace !== 0 && !(pace >= least && pace <= most))
    throw new InvalidRequest(
      `pace must be a number of tokens a second from ${least} to ${most}, 0 to pause, or null for full speed, but got ${pace}`,
      "pace",
    );
  if (!(steps >= 0 && steps <= mostSteps))
    throw new InvalidRequest(
      `steps must be an integer from 0 to ${mostSteps}, but got ${steps}`,
      "steps",
    );
}

export class RunPace {
  /** `rate`: tokens a second; 0: paused; null: full speed. @param {number | null} [rate] */
  constructor(rate = null) {
    this.rate = rate;
    this.end = rate === 0 ? 0 : Infinity;
    this.dueAt = 0;
  }

  /** Whether the run computes one token after another, the next when this was read. */
  get limits() {
    return this.rate !== null;
  }

  /** @param {number} index */
  mayWrite(index) {
    return index < this.end;
  }

  get isDue() {
    return this.dueAt <= performance.now();
  }

  /** Note that the next token is being computed. */
  submitted() {
    if (!this.rate) return;
    const now = performance.now();
    const period = 1000 / this.rate;
    this.dueAt = (now - this.dueAt >= period ? now : this.dueAt) + period;
  }

  /**
   * Change the pace; `nSubmitted` tokens may be written whatever it is. Throws InvalidRequest.
   *
   * @param {PaceChange} change
   * @param {number} nSubmitted
   */
  change({ pace: rate = this.rate, steps = 0 }, nSubmitted) {
    if (steps && rate !== 0)
      throw new InvalidRequest(
        "this run is not paused, so it cannot be stepped; send pace 0 with the steps",
        "steps",
      );
    if (rate !== this.rate) {
      this.end = rate === 0 ? nSubmitted : Infinity;
      this.dueAt = 0;
    }
    this.rate = rate;
    this.end += steps;
  }
}
