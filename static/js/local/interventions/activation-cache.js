// Residual streams that steers and patches use: those of the last token of a text, computed when they
// are first needed and then kept, so that a slider computes nothing (gpu/engine/activation_cache.py).

import { InterventionSchedule } from "./active.js";
import { MAX_PATCHES, MAX_STEERS, NONE_ENCODED, textsOf } from "./encode.js";
import { NONE_RESOLVED, resolve } from "./resolved.js";

/** Texts that are kept: as many as two sets of interventions can name. */
const MAX_KEPT = 2 * (2 * MAX_STEERS + MAX_PATCHES);
/** Time between two looks at whether the kernels are compiled; runs go on meanwhile. */
const WAIT_MS = 4;

export class ActivationCache {
  /**
   * `recomputer`: Recomputer. `warmUp` compiles the plans with interventions, for which the first
   * interventions wait.
   */
  constructor(recomputer, warmUp) {
    Object.assign(this, { recomputer, warmUp });
    this.warming = null;
    this.isWarm = false;
    /** ids as text → states, the one used last at the end */
    this.kept = new Map();
  }

  /** Return encoded interventions resolved, or null if something has to be computed for them. */
  resolveKept(encoded) {
    if (encoded === NONE_ENCODED) return NONE_RESOLVED;
    const isKept = textsOf(encoded).every((ids) => this.kept.has(String(ids)));
    if (!this.isWarm || !isKept) return null;
    return resolveChecked(encoded, (ids) => this.keep(ids, this.kept.get(String(ids))));
  }

  /**
   * Resolve encoded interventions piece by piece; yields after each. Throws InvalidRequest for states
   * that are not finite, and EngineError while the KV cache has no room for a text.
   */
  async *resolve(encoded) {
    const ready = this.resolveKept(encoded);
    if (ready) return ready;
    yield* this.waitForKernels();
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

  async *waitForKernels() {
    if (this.isWarm) return;
    this.warming ??= this.warmUp().finally(() => (this.isWarm = true));
    this.warming.catch(() => {}); // a step will say it
    while (!this.isWarm) {
      await new Promise((resume) => setTimeout(resume, WAIT_MS));
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
