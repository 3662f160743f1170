// @ts-nocheck
// Interventions with their vectors, ready to act, and the interventions of a run
// (gpu/interventions/resolved.py).

import { ActiveInterventions, InterventionSchedule } from "./active.js";
import { NONE_ENCODED, checkNoNewPatch } from "./encode.js";

/** Interventions as they were requested, with their vectors. */
export class ResolvedInterventions {
  /**
   * `active` acts on every token; `patches` on one each: position → (layer → {vector, name}).
   */
  constructor(requested, active, patches) {
    Object.assign(this, { requested, active, patches });
  }

  /** Add them to a schedule from position `first` on, their steers from `steered` on. */
  addTo(schedule, first, steered) {
    const edges = new Set([first, Math.max(first, steered)]);
    for (const at of this.patches.keys())
      for (const edge of [at, at + 1]) if (edge >= first) edges.add(edge);
    for (const edge of [...edges].sort((a, b) => a - b))
      schedule.change(edge, this.activeAt(edge, edge >= steered));
  }

  activeAt(position, isSteered) {
    const patch = this.patches.get(position);
    if (isSteered && !patch) return this.active;
    const steer = isSteered ? this.active.steer : new Map();
    return new ActiveInterventions({ ...this.active, steer, patch });
  }

  /** Throw InvalidRequest for vectors that are not finite. */
  validate() {
    this.active.validate();
    for (const patch of this.patches.values()) new ActiveInterventions({ patch }).validate();
  }
}

export const NONE_RESOLVED = resolve(NONE_ENCODED, null);

/**
 * Return encoded interventions with the vectors computed from their texts. `lastState(ids)` is the
 * residual stream of a text's last token before every layer and after the last, a Float32Array each.
 */
export function resolve({ requested, toward, away, patch }, lastState) {
  const { heads, attention, mlp, loras } = requested;
  const steer = new Map();
  requested.steer.forEach(({ layer, strength }, i) => {
    const state = lastState(toward[i])[layer];
    const other = away[i].length ? lastState(away[i])[layer] : null;
    const name = [layer, strength, toward[i], away[i]];
    steer.set(layer, added(steer.get(layer), scaled(strength, state, other), name));
  });
  const patches = new Map();
  requested.patch.forEach(({ layer, position }, i) => {
    const vector = lastState(patch[i])[layer];
    if (!patches.has(position)) patches.set(position, new Map());
    patches.get(position).set(layer, { vector, name: patch[i] });
  });
  const active = new ActiveInterventions({ heads, attention, mlp, steer, loras });
  return new ResolvedInterventions(requested, active, patches);
}

/** strength · (state − other), each step rounded to float32 as the server rounds it. */
function scaled(strength, state, other) {
  const factor = Math.fround(strength);
  return state.map((value, i) => factor * (other ? Math.fround(value - other[i]) : value));
}

/** The sum of a layer's vectors so far and another one. */
function added(before, vector, name) {
  if (!before) return { vector, name: [name] };
  return { vector: before.vector.map((value, i) => value + vector[i]), name: [...before.name, name] };
}

/** Interventions of one run. */
export class RunInterventions {
  /**
   *   first, updates  encoded: the first setting, and that of each scheduled update; null for an
   *                   update that changes none
   *   nPrompt         tokens of the prompt
   *   spans           [{first, encoded}], under which the prompt was computed
   */
  constructor(first, nPrompt, { updates = [], spans = [] } = {}) {
    Object.assign(this, { first, updates, nPrompt, spans });
    /** A setting that came while the run waited; it acts from the prompt's last token on. */
    this.pending = null;
    /** What acts on the tokens that are computed and on those to come. */
    this.schedule = new InterventionSchedule();
    /** The setting in force, as it was requested. */
    this.requested = first.requested;
    this.ofUpdates = null;
    if (this.encoded.every((each) => each === null || each === NONE_ENCODED))
      this.setResolved(this.encoded.map((each) => each && NONE_RESOLVED));
  }

  /** All that must be resolved before the run can start. */
  get encoded() {
    return [...this.spans.map(({ encoded }) => encoded), this.pending, this.first, ...this.updates];
  }

  /** Whether all vectors are computed. */
  get ready() {
    return this.ofUpdates !== null;
  }

  /** Set what `encoded` was resolved to, before any row is made. */
  setResolved(all) {
    const nSpans = this.spans.length;
    const [pending, first, ...updates] = all.slice(nSpans);
    const last = this.nPrompt - 1;
    this.schedule = new InterventionSchedule();
    this.spans.forEach((span, i) => all[i].addTo(this.schedule, span.first, span.first));
    first.addTo(this.schedule, nSpans ? last : 0, last);
    pending?.addTo(this.schedule, last, last);
    this.ofUpdates = updates;
  }

  /** The resolved interventions of scheduled update `n`, from 0; null: it changes none. */
  ofUpdate(n) {
    return this.ofUpdates[n] ?? null;
  }

  /** Let `resolved` act from position `first` on. Throws InvalidRequest for a new patch. */
  change(first, resolved) {
    checkNoNewPatch(this.requested, resolved.requested);
    this.requested = resolved.requested;
    resolved.addTo(this.schedule, first, first);
  }

  /**
   * Replace the setting of a run that is not submitted yet. Throws InvalidRequest for a new patch.
   */
  changeWaiting(encoded) {
    checkNoNewPatch(this.requested, encoded.requested);
    this.requested = encoded.requested;
    this.pending = encoded;
    this.ofUpdates = null;
  }
}
