// A run as its owner has it (gpu/engine/run.py, gpu/engine/updates.py).

import { InvalidRequest } from "../errors.js";
import { checkNoNewPatch } from "../interventions/encode.js";

export class Run {
  /**
   * `sequence`: its Sequence; `activations`: ActivationCache; `addWork(pieces)` has an async generator
   * worked off between steps.
   */
  constructor(sequence, activations, addWork) {
    Object.assign(this, { sequence, activations, addWork });
    this.waiting = [];
  }

  /** End the run. */
  cancel() {
    this.sequence.cancel();
  }

  /**
   * Change settings of the tokens not submitted yet. `encoded` replaces all interventions; what they
   * need is computed first, and later changes of the run wait behind: then this is a promise of the
   * acknowledgement. Throws InvalidRequest.
   */
  update(changes, capture, encoded = null) {
    if (encoded) checkNoNewPatch(this.sequence.interventions.requested, encoded.requested);
    const resolved = encoded && this.activations.resolveKept(encoded);
    const canAct = !encoded || (resolved && this.sequence.interventions.ready);
    if (canAct && !this.waiting.length) return this.apply(changes, capture, resolved);
    const done = new Promise((resolve, reject) =>
      this.waiting.push({ changes, capture, encoded, resolve, reject }),
    );
    if (this.waiting.length === 1) this.addWork(this.applyInOrder());
    return done;
  }

  apply(changes, capture, resolved) {
    if (this.sequence.finished)
      throw new InvalidRequest("this run has ended; settings act on the next one", "id");
    this.sequence.update(changes, capture, resolved);
  }

  async *applyInOrder() {
    while (this.waiting.length) {
      const [{ changes, capture, encoded, resolve, reject }] = this.waiting;
      try {
        const resolved = encoded && (yield* this.activations.resolve(encoded));
        resolve(this.apply(changes, capture, resolved));
      } catch (error) {
        reject(error);
      }
      this.waiting.shift();
    }
  }
}
