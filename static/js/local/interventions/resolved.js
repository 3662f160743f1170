// Interventions with their vectors, ready to act, and the interventions of a run
// (gpu/interventions/resolved.py).

import { ActiveInterventions, InterventionSchedule } from "./active.js";
import { NONE_ENCODED, checkNoNewPatch } from "./encode.js";

/**
 * @typedef {import("./active.js").NamedVector} NamedVector
 * @typedef {import("./encode.js").EncodedInterventions} EncodedInterventions
 * @typedef {import("./encode.js").EncodedSpan} EncodedSpan
 */

/** Interventions as they were requested, with their vectors. */
export class ResolvedInterventions {
  /**
   * `active` acts on every token; `patches` on one each: position → (layer → vector).
   *
   * @param {import("./encode.js").RequestedInterventions} requested
   * @param {ActiveInterventions} active
   * @param {Map<number, Map<number, NamedVector>>} patches
   */
  constructor(requested, active, patches) {
    this.requested = requested;
    this.active = active;
    this.patches = patches;
  }

  /**
   * Add them to a schedule from position `first` on, their steers from `steered` on.
   *
   * @param {InterventionSchedule} schedule
   * @param {number} first
   * @param {number} steered
   */
  addTo(schedule, first, steered) {
    const edges = new Set([first, Math.max(first, steered)]);
    for (const at of this.patches.keys())
      for (const edge of [at, at + 1]) if (edge >= first) edges.add(edge);
    for (const edge of [...edges].sort((a, b) => a - b))
      schedule.change(edge, this.activeAt(edge, edge >= steered));
  }

  /** @param {number} position @param {boolean} isSteered */
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

export const NONE_RESOLVED = resolve(NONE_ENCODED, () => []);

/**
 * Return encoded interventions with the vectors computed from their texts. `lastState(ids)` is the
 * residual stream of a text's last token before every layer and after the last.
 *
 * @param {EncodedInterventions} encoded
 * @param {(ids: number[]) => Float32Array[]} lastState
 */
export function resolve({ requested, toward, away, patch }, lastState) {
  const { heads, attention, mlp, loras, experts } = requested;
  /** @type {Map<number, NamedVector & {name: unknown[]}>} */
  const steer = new Map();
  requested.steer.forEach(({ layer, strength }, i) => {
    const state = lastState(toward[i])[layer];
    const other = away[i].length ? lastState(away[i])[layer] : null;
    const name = [layer, strength, toward[i], away[i]];
    steer.set(layer, added(steer.get(layer), scaled(strength, state, other), name));
  });
  /** @type {Map<number, Map<number, NamedVector>>} */
  const patches = new Map();
  requested.patch.forEach(({ layer, position }, i) => {
    const vectors = patches.get(position) ?? new Map();
    patches.set(position, vectors.set(layer, { vector: lastState(patch[i])[layer], name: patch[i] }));
  });
  const active = new ActiveInterventions({ heads, attention, mlp, steer, loras, experts });
  return new ResolvedInterventions(requested, active, patches);
}

/**
 * strength · (state − other), each step rounded to float32 as the server rounds it.
 *
 * @param {number} strength
 * @param {Float32Array} state
 * @param {Float32Array | null} other
 */
function scaled(strength, state, other) {
  const factor = Math.fround(strength);
  return state.map((value, i) => factor * (other ? Math.fround(value - other[i]) : value));
}

/**
 * The sum of a layer's vectors so far and another one.
 *
 * @param {NamedVector & {name: unknown[]} | undefined} before
 * @param {Float32Array} vector
 * @param {unknown} name
 */
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
   *   spans           under which the prompt was computed
   *
   * @param {EncodedInterventions} first
   * @param {number} nPrompt
   * @param {{updates?: (EncodedInterventions | null)[], spans?: EncodedSpan[]}} [others]
   */
  constructor(first, nPrompt, { updates = [], spans = [] } = {}) {
    this.first = first;
    this.updates = updates;
    this.nPrompt = nPrompt;
    this.spans = spans;
    /**
     * A setting that came while the run waited; it acts from the prompt's last token on.
     *
     * @type {EncodedInterventions | null}
     */
    this.pending = null;
    /** What acts on the tokens that are computed and on those to come. */
    this.schedule = new InterventionSchedule();
    /** The setting in force, as it was requested. */
    this.requested = first.requested;
    /** Those of the updates once all vectors are computed. @type {(ResolvedInterventions | null)[] | null} */
    this.ofUpdates = null;
    if (this.encoded.every((each) => each === NONE_ENCODED))
      this.setResolved(new Map([[NONE_ENCODED, NONE_RESOLVED]]));
  }

  /** All that must be resolved before the run can start. */
  get encoded() {
    const all = [...this.spans.map(({ encoded }) => encoded), this.pending, this.first, ...this.updates];
    return all.filter((each) => each !== null);
  }

  /** Whether all vectors are computed. */
  get ready() {
    return this.ofUpdates !== null;
  }

  /**
   * Set what each of `encoded` was resolved to, before any row is made.
   *
   * @param {Map<EncodedInterventions, ResolvedInterventions>} found
   */
  setResolved(found) {
    /** @param {EncodedInterventions | null} encoded */
    const resolved = (encoded) => (encoded && found.get(encoded)) ?? null;
    const last = this.nPrompt - 1;
    this.schedule = new InterventionSchedule();
    for (const { first, encoded } of this.spans) resolved(encoded)?.addTo(this.schedule, first, first);
    resolved(this.first)?.addTo(this.schedule, this.spans.length ? last : 0, last);
    resolved(this.pending)?.addTo(this.schedule, last, last);
    this.ofUpdates = this.updates.map(resolved);
  }

  /** The resolved interventions of scheduled update `n`, from 0; null: it changes none. @param {number} n */
  ofUpdate(n) {
    return this.ofUpdates?.[n] ?? null;
  }

  /**
   * Let `resolved` act from position `first` on. Throws InvalidRequest for a new patch.
   *
   * @param {number} first
   * @param {ResolvedInterventions} resolved
   */
  change(first, resolved) {
    checkNoNewPatch(this.requested, resolved.requested);
    this.requested = resolved.requested;
    resolved.addTo(this.schedule, first, first);
  }

  /**
   * Replace the setting of a run that is not submitted yet. Throws InvalidRequest for a new patch.
   *
   * @param {EncodedInterventions} encoded
   */
  changeWaiting(encoded) {
    checkNoNewPatch(this.requested, encoded.requested);
    this.requested = encoded.requested;
    this.pending = encoded;
    this.ofUpdates = null;
  }
}
