// Questions that wait for the engine. Runs get as much time as questions do.

import { PieceQueue } from "./piece-queue.js";

/** @extends {PieceQueue<InspectionAnswer>} */
export class QuestionQueue extends PieceQueue {
  constructor() {
    super();
    this.nextAt = 0;
  }

  /**
   * Resolves to the answer that the async generator `pieces` returns. Its info.ms is the time from
   * the first piece to the end.
   *
   * @param {Pieces<InspectionAnswer>} pieces
   */
  add(pieces) {
    return super.add(timed(pieces));
  }

  /**
   * Whether a piece should be computed now. Runs get as much time as the piece before took.
   *
   * @param {boolean} runsWrite
   */
  isDue(runsWrite) {
    return this.waiting.length > 0 && (!runsWrite || performance.now() >= this.nextAt);
  }

  async advance() {
    const begun = performance.now();
    await super.advance();
    const now = performance.now();
    this.nextAt = now + (now - begun);
  }
}

/** @param {Pieces<InspectionAnswer>} pieces @returns {Pieces<InspectionAnswer>} */
async function* timed(pieces) {
  const begun = performance.now();
  const answer = yield* pieces;
  return { ...answer, info: { ...answer.info, ms: performance.now() - begun } };
}
