// A run as its owner has it (gpu/engine/run.py, gpu/engine/updates.py).

import { InvalidRequest } from "../shared/errors.js";
import { checkNoNewPatch } from "../interventions/encode.js";

/**
 * Changes of the tokens not submitted yet; null: as before.
 *
 * @typedef {import("../interventions/encode.js").EncodedInterventions} EncodedInterventions
 * @typedef {import("../interventions/resolved.js").ResolvedInterventions} ResolvedInterventions
 * @typedef {import("./run-pace.js").PaceChange} PaceChange
 * @typedef {import("./sequence.js").Changes} Changes
 */

/**
 * @typedef {{changes: Changes | null, capture: boolean | null, encoded: EncodedInterventions | null, pace: PaceChange | null}} Update
 */

export class Run {
  /**
   * `addWork(pieces)` has an async generator worked off between steps; `wake()` has the engine look for
   * something to do.
   *
   * @param {import("./sequence.js").Sequence} sequence
   * @param {import("../interventions/activation-cache.js").ActivationCache} activations
   * @param {(pieces: Pieces<void>) => void} addWork
   * @param {() => void} wake
   */
  constructor(sequence, activations, addWork, wake) {
    this.sequence = sequence;
    this.activations = activations;
    this.addWork = addWork;
    this.wake = wake;
    /** @type {(Update & {resolve: () => void, reject: (error: unknown) => void})[]} */
    this.waiting = [];
  }

  /** Whether nothing will be written until somebody asks for it. */
  get paused() {
    return this.sequence.paused;
  }

  /** End the run. */
  cancel() {
    this.sequence.cancel();
    this.wake();
  }

  /**
   * Change settings of the tokens not submitted yet. `encoded` replaces all interventions; what they
   * need is computed first, and later changes of the run wait behind: then this is a promise of the
   * acknowledgement. Throws InvalidRequest.
   *
   * @param {Changes | null} changes
   * @param {boolean | null} capture
   * @param {EncodedInterventions | null} [encoded]
   * @param {PaceChange | null} [pace]
   * @returns {Promise<void> | void}
   */
  update(changes, capture, encoded = null, pace = null) {
    if (encoded) checkNoNewPatch(this.sequence.interventions.requested, encoded.requested);
    const resolved = encoded && this.activations.resolveKept(encoded);
    const canAct = !encoded || (resolved && this.sequence.interventions.ready);
    if (canAct && !this.waiting.length) return this.apply(changes, capture, resolved, pace);
    /** @type {Promise<void>} */
    const done = new Promise((resolve, reject) => {
      this.waiting.push({ changes, capture, encoded, pace, resolve, reject });
    });
    if (this.waiting.length === 1) this.addWork(this.applyInOrder());
    return done;
  }

  /**
   * @param {Changes | null} changes
   * @param {boolean | null} capture
   * @param {ResolvedInterventions | null} resolved
   * @param {PaceChange | null} pace
   */
  apply(changes, capture, resolved, pace) {
    if (this.sequence.finished)
      throw new InvalidRequest("this run has ended; settings act on the next one", "id");
    this.sequence.update(changes, capture, resolved, pace);
    this.wake();
  }

  /** @returns {Pieces<void>} */
  async *applyInOrder() {
    while (this.waiting.length) {
      const [{ changes, capture, encoded, pace, resolve, reject }] = this.waiting;
      try {
        const resolved = encoded && (yield* this.activations.resolve(encoded));
        this.apply(changes, capture, resolved, pace);
        resolve();
      } catch (error) {
        reject(error);
      }
      this.waiting.shift();
    }
  }
}
