// Work that waits for the engine, done one after the other, piece by piece between steps.

/**
 * @template T
 * @typedef {{pieces: AsyncIterator<unknown, T>, resolve: (value: T) => void, reject: (error: unknown) => void}} Work
 */

/** @template T */
export class PieceQueue {
  /** @type {Work<T>[]} */
  waiting = [];

  get length() {
    return this.waiting.length;
  }

  /**
   * Resolves to what the async generator `pieces` returns.
   *
   * @param {AsyncIterator<unknown, T>} pieces
   * @returns {Promise<T>}
   */
  add(pieces) {
    return new Promise((resolve, reject) => this.waiting.push({ pieces, resolve, reject }));
  }

  /** Do a piece of the first work. No step may be in flight. */
  async advance() {
    const [first] = this.waiting;
    try {
      const piece = await first.pieces.next();
      if (piece.done) this.settle(first, () => first.resolve(piece.value));
    } catch (error) {
      this.settle(first, () => first.reject(error));
    }
  }

  /** Reject all: the engine cannot go on. @param {unknown} error */
  fail(error) {
    for (const { reject } of this.waiting.splice(0)) reject(error);
  }

  /** @param {Work<T>} work @param {() => void} act */
  settle(work, act) {
    this.waiting = this.waiting.filter((other) => other !== work);
    act();
  }
}
