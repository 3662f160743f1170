// @ts-nocheck
// A run as its owner has it (gpu/engine/run.py, gpu/engine/updates.py).

import { InvalidRequest } from "../shared/errors.js";
import { checkNoNewPatch } from "../interventions/encode.js";

export class Run {
  /**
   * `sequence`: its Sequence; `activations`: ActivationCache; `addWork(pieces)` has an async generator
   * worked off between steps; `wake()` has the engine look for something to do.
   */
  constructor(sequence, activations, addWork, wake) {
    Object.assign(this, { sequence, activations, addWork, wake });
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
   * acknowledgement. `pace`: {pace, steps}. Throws InvalidRequest.
   */
  update(changes, capture, encoded = null, pace = null) {
    if (encoded) checkNoNewPatch(this.sequence.interventions.requested, encoded.requested);
    const resolved = encoded && this.activations.resolveKept(encoded);
    const canAct = !encoded || (resolved && this.sequence.interventions.ready);
    if (canAct && !this.waiting.length) return this.apply(changes, capture, resolved, pace);
    const done = new Promise((resolve, reject) =>
      this.waiting.push({ changes, capture, encoded, pace, resolve, reject }),
    );
    if (this.waiting.length === 1) this.addWork(this.applyInOrder());
    return done;
  }

  apply(changes, capture, resolved, pace) {
    if (this.sequence.finished)
      throw new InvalidRequest("this run has ended; settings act on the next one", "id");
    this.sequence.update(changes, capture, resolved, pace);
    this.wake();
  }

  async *applyInOrder() {
    while (this.waiting.length) {
      const [{ changes, capture, encoded, pace, resolve, reject }] = this.waiting;
      try {
        const resolved = encoded && (yield* this.activations.resolve(encoded));
        resolve(this.apply(changes, capture, resolved, pace));
      } catch (error) {
        reject(error);
      }
      this.waiting.shift();
    }
  }
}
