// @ts-nocheck
// Work that waits for the engine, done one after the other, piece by piece between steps.

export class PieceQueue {
  constructor() {
    this.waiting = [];
  }

  get length() {
    return this.waiting.length;
  }

  /** Resolves to what the async generator `pieces` returns. */
  add(pieces) {
    return new Promise((resolve, reject) => this.waiting.push({ pieces, resolve, reject }));
  }

  /** Do a piece of the first work. No step may be in flight. */
  async advance() {
    const [first] = this.waiting;
    try {
      const { done, value } = await first.pieces.next();
      if (done) this.settle(first, () => first.resolve(value));
    } catch (error) {
      this.settle(first, () => first.reject(error));
    }
  }

  /** Reject all: the engine cannot go on. */
  fail(error) {
    for (const { reject } of this.waiting.splice(0)) reject(error);
  }

  settle(work, act) {
    this.waiting = this.waiting.filter((other) => other !== work);
    act();
  }
}
