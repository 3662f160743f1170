// Which runs have a slot of the engine in the browser, and the rows of the next step
// (gpu/engine/scheduler.py).
//
// A step has one row for each writing sequence, and the next chunk of a prompt in the rest.

import { writeText } from "./text-memory.js";

/** A step of a prompt should take no longer than this, so that the page stays smooth. */
const MAX_STEP_MS = 100;
export const FIRST_CHUNK = 32;
const LEAST_CHUNK = 8;

/**
 * What a run has in a step: a chunk of its prompt, and the row whose next token is sampled.
 *
 * @typedef {import("./sequence.js").Sequence} Sequence
 * @typedef {{first: number, n: number, firstRow: number}} Chunk
 * @typedef {{sequence: Sequence, chunk?: Chunk, sampledRow: number | null, capture: boolean}} StepPart
 * @typedef {import("./step-queue.js").Step & {parts: StepPart[]}} ScheduledStep
 */

export class Scheduler {
  /**
   * @param {import("./slots.js").Slots} slots
   * @param {import("./buffers.js").Buffers} buffers
   * @param {Exported.PlanLimits} limits
   */
  constructor(slots, buffers, limits) {
    this.slots = slots;
    this.buffers = buffers;
    this.limits = limits;
    /**
     * The first run that waits, after one gave blocks back, until some may be free or a run changes.
     *
     * @type {Sequence | null}
     */
    this.lacksBlocks = null;
    /** @type {Sequence[]} */
    this.waiting = [];
    /** @type {Sequence[]} */
    this.active = [];
    this.nRuns = 0;
    this.chunk = FIRST_CHUNK;
  }

  /** Let a run wait for its turn. @param {Sequence} sequence */
  add(sequence) {
    sequence.order = this.nRuns++;
    this.waiting.push(sequence);
    sequence.accepted(this.place(this.inTurn.indexOf(sequence) + 1));
  }

  /** All runs. */
  get sequences() {
    return [...this.active, ...this.waiting];
  }

  /** When the next run may compute a token, in ms; Infinity: none waits for its pace. */
  get dueAt() {
    const paced = this.active.filter(({ finished, pace }) => !finished && pace.rate);
    return Math.min(...paced.map(({ pace }) => pace.dueAt));
  }

  /**
   * How many runs must end before the `n`-th that waits, from 1, starts; 0: it starts now.
   *
   * @param {number} n
   */
  place(n) {
    if (this.lacksBlocks && this.waiting.includes(this.lacksBlocks)) return n;
    return Math.max(0, n - (this.limits.slots - this.active.filter(({ paused }) => !paused).length));
  }

  /** The runs that wait, in the order in which they start: paused ones after all others. */
  get inTurn() {
    return this.waiting.toSorted((a, b) => Number(a.paused) - Number(b.paused) || a.order - b.order);
  }

  /** Whether any run has something to compute now or in a while: one that is paused has its preview first. */
  get isWriting() {
    return this.active.some(({ finished, paused, held }) => !finished && !(paused && held));
  }

  /** Give slots to waiting runs, and take them from finished ones, and from paused ones if needed. */
  admit() {
    this.active = this.active.filter((sequence) => {
      if (sequence.finished) {
        this.slots.release(sequence.slot, sequence.computed);
        this.lacksBlocks = null;
      }
      return !sequence.finished;
    });
    this.waiting = this.waiting.filter((sequence) => !sequence.finished);
    for (;;) {
      const [sequence] = this.inTurn;
      if (!sequence?.interventions.ready || sequence === this.lacksBlocks) break;
      const text = sequence.upTo(sequence.ids.length);
      let taken = this.slots.take(text, !sequence.isPreempted);
      if (!taken && !sequence.paused && this.preemptPaused())
        taken = this.slots.take(text, !sequence.isPreempted);
      if (!taken) break;
      this.waiting.splice(this.waiting.indexOf(sequence), 1);
      sequence.start(taken.slot, taken.reused);
      this.tellText(sequence);
      this.active.push(sequence);
    }
    this.inTurn.forEach((sequence, i) => sequence.events.movedTo(this.place(i + 1)));
  }

  /**
   * Take slot and blocks from the last paused run without a row in `step`, the step that is being
   * made; false if there is none. It starts again when no other run waits, or in its turn once it
   * may write.
   *
   * @param {ScheduledStep | null} [step]
   */
  preemptPaused(step = null) {
    const last = this.active.findLast(
      ({ paused, finished, slot }) => paused && !finished && !step?.active.has(slot),
    );
    if (last) this.preempt(last);
    return !!last;
  }

  /** Take slot and blocks from a run, which is computed again when it starts. @param {Sequence} sequence */
  preempt(sequence) {
    const { slot, computed } = sequence;
    sequence.preempt();
    this.slots.release(slot, computed);
    this.active.splice(this.active.indexOf(sequence), 1);
    this.waiting.push(sequence);
  }

  /** Tell the device the text of a run, which its penalties count. @param {Sequence} sequence */
  tellText(sequence) {
    const { slot, ids, nCounted, params } = sequence;
    writeText(this.buffers, slot, ids, nCounted, params.logit_bias);
    sequence.textIsStale = false;
  }

  /** Return the next step, or null if there is nothing to submit. */
  nextStep() {
    for (const sequence of this.active) sequence.applyScheduledUpdates();
    const captured = this.active.some((sequence) => sequence.capture && !sequence.finished);
    const most = captured ? this.limits.max_captured_rows : this.limits.max_rows;
    /** @type {ScheduledStep} */
    const step = { rows: [], samples: [], parts: [], captured, active: new Map() };
    for (const sequence of [...this.active]) {
      if (!sequence.wantsDecode || !this.cover(sequence, sequence.nextPosition, step)) continue;
      if (sequence.textIsStale) this.tellText(sequence);
      const row = step.rows.length;
      step.active.set(sequence.slot, sequence.activeAt(sequence.nextPosition));
      step.rows.push(sequence.decodeRow());
      step.samples.push(sequence.sample(row));
      step.parts.push({ sequence, sampledRow: row, capture: sequence.capture });
    }
    const prompt = this.active.find((sequence) => sequence.prefilling && !sequence.finished);
    if (prompt) this.addChunk(step, prompt, Math.min(this.chunk, most - step.rows.length));
    // Now, and not when the next token is wanted: without a change there may be no next one.
    for (const { sequence, sampledRow } of step.parts)
      if (sampledRow !== null) sequence.applyScheduledUpdates();
    return step.rows.length ? step : null;
  }

  /** @param {ScheduledStep} step @param {Sequence} sequence @param {number} most */
  addChunk(step, sequence, most) {
    const first = sequence.nPrefilled;
    const n = sequence.chunkSize(most);
    if (n <= 0 || !this.cover(sequence, first + n - 1, step)) return;
    const firstRow = step.rows.length;
    step.active.set(sequence.slot, sequence.activeAt(first));
    step.rows.push(...sequence.prefillRows(n));
    const sampledRow = sequence.prefilling ? null : firstRow + n - 1;
    if (sampledRow !== null) step.samples.push(sequence.sample(sampledRow));
    step.parts.push({ sequence, chunk: { first, n, firstRow }, sampledRow, capture: sequence.capture });
  }

  /**
   * Give a sequence of a step the KV blocks up to `position`, which paused runs make room for. Without
   * any left, one that was or is paused waits until another ends; others end with an error.
   *
   * @param {Sequence} sequence
   * @param {number} position
   * @param {ScheduledStep} step
   */
  cover(sequence, position, step) {
    let covered = this.coverSlot(sequence.slot, position);
    while (!covered && !sequence.paused && this.preemptPaused(step))
      covered = this.coverSlot(sequence.slot, position);
    if (covered) return true;
    const others = this.active.filter((other) => other !== sequence && !other.finished);
    if (others.some(({ paused, slot }) => paused && step.active.has(slot))) return false; // a later
    // step can preempt that one
    if (others.length && (sequence.paused || sequence.isPreempted)) {
      if (!sequence.settled && !sequence.paused) return false; // its last tokens come first
      this.preempt(sequence);
      this.lacksBlocks = sequence;
      return false;
    }
    sequence.end("error", "the KV cache is full; end another run first");
    return false;
  }

  /**
   * Give a slot the KV blocks up to `position` for a question or a run that is being prepared, while
   * no step is in flight; paused runs make room. False: there are none left.
   *
   * @param {number} slot
   * @param {number} position
   */
  coverBetweenSteps(slot, position) {
    while (!this.coverSlot(slot, position)) {
      if (!this.preemptPaused()) return false;
      [this.lacksBlocks] = this.inTurn; // else it would take them back before the next piece
    }
    return true;
  }

  /**
   * Give a slot the KV blocks up to `position`; false: there are none left.
   *
   * @param {number} slot
   * @param {number} position
   */
  coverSlot(slot, position) {
    const added = this.slots.cover(slot, position);
    if (!added) return false;
    const { first, blocks } = added;
    if (!blocks.length) return true;
    const at = (slot * this.limits.max_blocks + first) * 4;
    this.buffers.write("block_tables", new Uint32Array(blocks), at);
    return true;
  }

  /**
   * Note that a chunk of `n` rows took so long, for the size of the next ones.
   *
   * @param {number} n
   * @param {number} ms
   */
  chunkTook(n, ms) {
    if (n < this.chunk) return;
    if (ms > MAX_STEP_MS) this.chunk = Math.max(LEAST_CHUNK, this.chunk / 2);
    else if (ms < 0.4 * MAX_STEP_MS) this.chunk = Math.min(this.limits.max_rows, this.chunk * 2);
  }

  /** The CachedText of each slot, while no step is in flight. */
  texts() {
    const texts = [...this.slots.texts];
    for (const sequence of this.active) texts[sequence.slot] = sequence.computed;
    return texts;
  }

  /** The runs that have a slot, {run, slot}. */
  runs() {
    return this.active.filter(({ finished }) => !finished).map(({ run, slot }) => ({ run, slot }));
  }

  /** Numbers of the runs that have none. */
  waitingRuns() {
    return this.waiting.filter(({ finished }) => !finished).map(({ run }) => run);
  }
}
