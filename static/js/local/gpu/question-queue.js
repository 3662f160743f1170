// Questions that wait for the engine: answered one after the other, piece by piece between steps.

export class QuestionQueue {
  constructor() {
    this.waiting = [];
    this.nextAt = 0;
  }

  get length() {
    return this.waiting.length;
  }

  /**
   * Resolves to the answer that the async generator `pieces` returns. Its info.ms is the time from
   * the first piece to the end.
   */
  add(pieces) {
    return new Promise((resolve, reject) => this.waiting.push({ pieces, resolve, reject }));
  }

  /** Whether a piece should be computed now. Runs get as much time as the piece before took. */
  isDue(runsWrite) {
    return this.waiting.length > 0 && (!runsWrite || performance.now() >= this.nextAt);
  }

  /** Compute one piece of the first question. No step may be in flight. */
  async advance() {
    const [question] = this.waiting;
    const begun = performance.now();
    question.since ??= begun;
    try {
      const { done, value } = await question.pieces.next();
      if (done) this.settle(question, () => question.resolve(timed(value, question.since)));
    } catch (error) {
      this.settle(question, () => question.reject(error));
    }
    const now = performance.now();
    this.nextAt = now + (now - begun);
  }

  /** Reject all: the engine cannot answer any more. */
  fail(error) {
    for (const { reject } of this.waiting.splice(0)) reject(error);
  }

  settle(question, act) {
    this.waiting = this.waiting.filter((other) => other !== question);
    act();
  }
}

function timed(answer, since) {
  return { ...answer, info: { ...answer.info, ms: performance.now() - since } };
}
