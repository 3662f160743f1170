// Residual streams that steers and patches use: those of the last token of a text, computed when they
// are first needed and then kept, so that a slider computes nothing (gpu/engine/activation_cache.py).

import { InterventionSchedule } from "./active.js";
import { actingOf, NONE_ENCODED, textsOf } from "./encode.js";
import { NONE_RESOLVED, resolve } from "./resolved.js";

/** Texts that are kept, more than one set of interventions can name. */
const MAX_KEPT = 64;
/** Time between two looks at whether what is waited for is there; runs go on meanwhile. */
const WAIT_MS = 4;

/** Resolves after `WAIT_MS`, and after messages that came were read. */
export const wait = () => new Promise((resume) => setTimeout(resume, WAIT_MS));

/**
 * @typedef {import("./encode.js").EncodedInterventions} EncodedInterventions
 * @typedef {import("./resolved.js").ResolvedInterventions} ResolvedInterventions
 * @typedef {Map<string, Float32Array[]>} States
 */

export class ActivationCache {
  /**
   * `recomputer` computes states; `warmUp(acting)` compiles the plans with what acts, for which the first
   * such interventions wait.
   *
   * @param {{states(ids: number[]): Pieces<Float32Array[]>}} recomputer
   * @param {(acting: Acting) => Promise<void>} warmUp
   */
  constructor(recomputer, warmUp) {
    this.recomputer = recomputer;
    this.warmUp = warmUp;
    /**
     * What acts, as text → whether its plans are compiled; they are being compiled else.
     *
     * @type {Map<string, boolean>}
     */
    this.warm = new Map();
    /** States by ids as text, the one used last at the end. @type {States} */
    this.kept = new Map();
  }

  /**
   * Return encoded interventions resolved, or null if something has to be computed for them.
   *
   * @param {EncodedInterventions} encoded
   */
  resolveKept(encoded) {
    if (encoded === NONE_ENCODED) return NONE_RESOLVED;
    if (!this.isWarm(encoded)) return null;
    /** @type {States} */
    const states = new Map();
    for (const ids of textsOf(encoded)) {
      const kept = this.kept.get(String(ids));
      if (!kept) return null;
      states.set(String(ids), this.keep(ids, kept));
    }
    return resolveChecked(encoded, states);
  }

  /**
   * Resolve encoded interventions piece by piece; yields after each. Throws InvalidRequest for states
   * that are not finite, and EngineError while the KV cache has no room for a text.
   *
   * @param {EncodedInterventions} encoded
   * @returns {Pieces<ResolvedInterventions>}
   */
  async *resolve(encoded) {
    const ready = this.resolveKept(encoded);
    if (ready) return ready;
    yield* this.waitForKernels(encoded);
    /** @type {States} */
    const found = new Map();
    for (const ids of textsOf(encoded)) found.set(String(ids), yield* this.state(ids));
    return resolveChecked(encoded, found);
  }

  /**
   * Resolve the interventions of a run, so that it can start.
   *
   * @param {import("./resolved.js").RunInterventions} interventions
   * @returns {Pieces<void>}
   */
  async *resolveRun(interventions) {
    /** @type {Map<EncodedInterventions, ResolvedInterventions>} */
    const found = new Map();
    for (const encoded of interventions.encoded) found.set(encoded, yield* this.resolve(encoded));
    interventions.setResolved(found);
  }

  /**
   * Return the schedule of a text that was computed under spans.
   *
   * @param {import("./encode.js").EncodedSpan[]} spans
   * @returns {Pieces<InterventionSchedule>}
   */
  async *schedule(spans) {
    const schedule = new InterventionSchedule();
    for (const { first, encoded } of spans)
      (yield* this.resolve(encoded)).addTo(schedule, first, first);
    return schedule;
  }

  /** Whether the plans are compiled that encoded interventions need. @param {EncodedInterventions} encoded */
  isWarm(encoded) {
    return this.warm.get(JSON.stringify(actingOf(encoded))) ?? false;
  }

  /** @param {EncodedInterventions} encoded @returns {Pieces<void>} */
  async *waitForKernels(encoded) {
    const acting = actingOf(encoded);
    const key = JSON.stringify(acting);
    if (!this.warm.has(key)) {
      this.warm.set(key, false);
      const done = () => this.warm.set(key, true);
      this.warmUp(acting).then(done, done); // a step will say what went wrong
    }
    while (!this.warm.get(key)) {
      await wait();
      yield;
    }
  }

  /** @param {number[]} ids @returns {Pieces<Float32Array[]>} */
  async *state(ids) {
    const kept = this.kept.get(String(ids));
    return this.keep(ids, kept ?? (yield* this.recomputer.states(ids)));
  }

  /** @param {number[]} ids @param {Float32Array[]} state */
  keep(ids, state) {
    const key = String(ids);
    this.kept.delete(key);
    this.kept.set(key, state);
    const [oldest] = this.kept.keys();
    if (this.kept.size > MAX_KEPT) this.kept.delete(oldest);
    return state;
  }
}

/**
 * Return encoded interventions resolved. Throws InvalidRequest for vectors that are not finite.
 *
 * @param {EncodedInterventions} encoded
 * @param {States} states
 */
function resolveChecked(encoded, states) {
  const resolved = resolve(encoded, (ids) => states.get(String(ids)) ?? []);
  resolved.validate();
  return resolved;
}
