// @ts-nocheck
// Residual streams that steers and patches use: those of the last token of a text, computed when they
// are first needed and then kept, so that a slider computes nothing (gpu/engine/activation_cache.py).

import { InterventionSchedule } from "./active.js";
import { actingOf, MAX_PATCHES, MAX_STEERS, NONE_ENCODED, textsOf } from "./encode.js";
import { NONE_RESOLVED, resolve } from "./resolved.js";

/** Texts that are kept: as many as two sets of interventions can name. */
const MAX_KEPT = 2 * (2 * MAX_STEERS + MAX_PATCHES);
/** Time between two looks at whether what is waited for is there; runs go on meanwhile. */
const WAIT_MS = 4;

/** Resolves after `WAIT_MS`, and after messages that came were read. */
export const wait = () => new Promise((resume) => setTimeout(resume, WAIT_MS));

export class ActivationCache {
  /**
   * `recomputer`: Recomputer. `warmUp(acting)` compiles the plans with what acts (`actingOf`), for
   * which the first such interventions wait.
   */
  constructor(recomputer, warmUp) {
    Object.assign(this, { recomputer, warmUp });
    /** What acts, as text → whether its plans are compiled; they are being compiled else. */
    this.warm = new Map();
    /** ids as text → states, the one used last at the end */
    this.kept = new Map();
  }

  /** Return encoded interventions resolved, or null if something has to be computed for them. */
  resolveKept(encoded) {
    if (encoded === NONE_ENCODED) return NONE_RESOLVED;
    const isKept = textsOf(encoded).every((ids) => this.kept.has(String(ids)));
    if (!this.isWarm(encoded) || !isKept) return null;
    return resolveChecked(encoded, (ids) => this.keep(ids, this.kept.get(String(ids))));
  }

  /**
   * Resolve encoded interventions piece by piece; yields after each. Throws InvalidRequest for states
   * that are not finite, and EngineError while the KV cache has no room for a text.
   */
  async *resolve(encoded) {
    const ready = this.resolveKept(encoded);
    if (ready) return ready;
    yield* this.waitForKernels(encoded);
    const found = new Map();
    for (const ids of textsOf(encoded)) found.set(String(ids), yield* this.state(ids));
    return resolveChecked(encoded, (ids) => found.get(String(ids)));
  }

  /** Resolve the RunInterventions of a run, so that it can start. */
  async *resolveRun(interventions) {
    const all = [];
    for (const encoded of interventions.encoded)
      all.push(encoded && (yield* this.resolve(encoded)));
    interventions.setResolved(all);
  }

  /** Return the schedule of a text that was computed under spans, [{first, encoded}]. */
  async *schedule(spans) {
    const schedule = new InterventionSchedule();
    for (const { first, encoded } of spans)
      (yield* this.resolve(encoded)).addTo(schedule, first, first);
    return schedule;
  }

  /** Whether the plans are compiled that encoded interventions need. */
  isWarm(encoded) {
    return this.warm.get(JSON.stringify(actingOf(encoded))) ?? false;
  }

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

  async *state(ids) {
    const kept = this.kept.get(String(ids));
    return this.keep(ids, kept ?? (yield* this.recomputer.states(ids)));
  }

  keep(ids, state) {
    const key = String(ids);
    this.kept.delete(key);
    this.kept.set(key, state);
    if (this.kept.size > MAX_KEPT) this.kept.delete(this.kept.keys().next().value);
    return state;
  }
}

/** Return encoded interventions resolved. Throws InvalidRequest for vectors that are not finite. */
function resolveChecked(encoded, lastState) {
  const resolved = resolve(encoded, lastState);
  resolved.validate();
  return resolved;
}
