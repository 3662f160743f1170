// Log of the latest steps, kept while somebody reads it: whose rows ran, and which runs waited
// (gpu/engine/step_log.py).

/** Most steps that are kept. */
const MAX_STEPS = 512;
/** Steps are recorded for this long after they were read. */
const WATCH_MS = 5000;

/** What a run had in a step (`StepPart` of gpu/inspection/requests.py). */
const PREFILL = 0;
const DECODE = 1;
const WAITING = 2;

/**
 * A run in a step: [run, what it had, rows, accepted drafts].
 *
 * @typedef {[run: number, had: number, rows: number, accepted: number]} StepPart
 * @typedef {{number: number, ms: number, parts: StepPart[]}} LoggedStep
 * @typedef {{parts: {sequence: {run: number}, chunk?: {n: number}}[]}} SubmittedStep
 */

/** Records steps only while it is read, so that it costs nothing otherwise. */
export class StepLog {
  /** `now` returns milliseconds. */
  constructor(now = () => performance.now()) {
    this.now = now;
    this.watchedUntil = -Infinity;
    /**
     * Steps in flight that are recorded → the parts of the runs that waited then.
     *
     * @type {Map<SubmittedStep, StepPart[]>}
     */
    this.inFlight = new Map();
    /** @type {LoggedStep[]} */
    this.steps = [];
    this.n = 0;
  }

  /**
   * Return the steps whose number is greater than `after`, {number, ms, parts}, and go on recording.
   *
   * @param {number} after
   */
  read(after) {
    this.watchedUntil = this.now() + WATCH_MS;
    return this.steps.filter(({ number }) => number > after);
  }

  /**
   * Note a step that is submitted; `waiting()` returns the numbers of the runs that wait.
   *
   * @param {SubmittedStep} step
   * @param {() => number[]} waiting
   */
  submitted(step, waiting) {
    if (this.now() >= this.watchedUntil) return;
    this.inFlight.set(step, waiting().map((run) => [run, WAITING, 0, 0]));
  }

  /** Record a step whose result was read; it took `ms`. @param {SubmittedStep} step @param {number} ms */
  collected(step, ms) {
    const waiting = this.inFlight.get(step);
    if (!waiting) return;
    this.inFlight.delete(step);
    this.n += 1;
    this.steps.push({ number: this.n, ms, parts: [...step.parts.map(partOf), ...waiting] });
    if (this.steps.length > MAX_STEPS) this.steps.shift();
  }
}

/**
 * The first sample of a prompt comes from its chunk.
 *
 * @param {SubmittedStep["parts"][number]} part
 * @returns {StepPart}
 */
const partOf = ({ sequence, chunk }) => [sequence.run, chunk ? PREFILL : DECODE, chunk?.n ?? 1, 0];
