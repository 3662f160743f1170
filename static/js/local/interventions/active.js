// Interventions that act on the passes of a sequence, as data (gpu/interventions/active.py).

import { InvalidRequest } from "../shared/errors.js";

/**
 * A vector of the model's width. Its name says what it was computed from: equal names are equal vectors.
 *
 * @typedef {{vector: Float32Array, name: unknown}} NamedVector
 * @typedef {{layer: number, head?: number, factor: number}} Factor
 * @typedef {{first: number, active: ActiveInterventions}} ActiveSpan
 */

/** Interventions in the passes of one sequence; what is not named is left alone, bit for bit. */
export class ActiveInterventions {
  /**
   *   heads, attention, mlp  factors on what each puts out
   *   steer                  by layer: added to the residual stream before the layer
   *   patch                  by layer: what the stream becomes; it is steered after that
   *   loras                  of adapters; 0 is off, as are those that are not named
   *   experts                that are switched off
   *
   * @param {{
   *   heads?: Read.HeadFactor[], attention?: Read.LayerFactor[], mlp?: Read.LayerFactor[],
   *   steer?: Map<number, NamedVector>, patch?: Map<number, NamedVector>, loras?: Read.LoraStrength[],
   *   experts?: Read.ExpertOff[],
   * }} [parts]
   */
  constructor({
    heads = [], attention = [], mlp = [], steer = new Map(), patch = new Map(), loras = [],
    experts = [],
  } = {}) {
    this.heads = heads;
    this.attention = attention;
    this.mlp = mlp;
    this.steer = steer;
    this.patch = patch;
    this.loras = loras;
    this.experts = experts;
    const steers = [...steer].filter(([, { vector }]) => vector.some(Boolean));
    const parts = [
      changed(heads), changed(attention), changed(mlp), named(steers), named([...patch]), offOf(experts),
    ];
    /** Text that is equal for equal changes of the model's own parts, and empty if there are none. */
    this.baseDigest = parts.some((part) => part.length) ? JSON.stringify(parts) : "";
    /** The same of the adapters. */
    this.loraDigest = digestOf(loras);
    /** The same of both. */
    this.digest = [this.baseDigest, this.loraDigest].filter(Boolean).join(" ");
  }

  /** Whether the model's own parts are changed. */
  get actsOnBase() {
    return this.baseDigest !== "";
  }

  /** Whether an adapter acts. */
  get actsOnLoras() {
    return this.loraDigest !== "";
  }

  /** Throw InvalidRequest for vectors that are not finite. */
  validate() {
    expectFinite("steers", this.steer);
    expectFinite("patches", this.patch);
  }
}

/** @param {string} does @param {Map<number, NamedVector>} vectors */
function expectFinite(does, vectors) {
  for (const [layer, { vector }] of vectors)
    if (!vector.every(Number.isFinite))
      throw new InvalidRequest(
        `the vector that ${does} layer ${layer} has shape (${vector.length},); give ` +
          `${vector.length} finite numbers`,
        "reach",
      );
}

/** @param {Factor[]} factors */
const changed = (factors) =>
  factors
    .filter(({ factor }) => factor !== 1)
    .map(({ layer, head = 0, factor }) => [layer, head, factor])
    .sort(([layer, head], [otherLayer, otherHead]) => layer - otherLayer || head - otherHead);

/** @param {Read.ExpertOff[]} experts */
const offOf = (experts) =>
  experts
    .map(({ layer, expert }) => [layer, expert])
    .sort(([layer, expert], [otherLayer, other]) => layer - otherLayer || expert - other);

/** @param {Read.LoraStrength[]} loras */
function digestOf(loras) {
  const on = loras.filter(({ strength }) => strength !== 0);
  const listed = on.map(({ name, strength }) => [name, strength]).sort(([a], [b]) => (a < b ? -1 : 1));
  return on.length ? JSON.stringify({ loras: listed }) : "";
}

/** @param {[layer: number, vector: NamedVector][]} vectors */
const named = (vectors) =>
  [...vectors].sort(([a], [b]) => a - b).map(([layer, { name }]) => [layer, name]);

export const NONE_ACTIVE = new ActiveInterventions();

/**
 * Interventions on the token at `position`. `spans`: those of an InterventionSchedule.
 *
 * @param {ActiveSpan[]} spans
 * @param {number} position
 */
export const activeAt = (spans, position) =>
  spans.findLast(({ first }) => first <= position)?.active ?? NONE_ACTIVE;

/**
 * First position after `position` with other interventions, at most `limit`.
 *
 * @param {ActiveSpan[]} spans
 * @param {number} position
 * @param {number} limit
 */
export function nextChange(spans, position, limit) {
  const next = spans.find(({ first }) => first > position);
  return next ? Math.min(limit, next.first) : limit;
}

/** Interventions by the position of a text from which they act, until the next one. */
export class InterventionSchedule {
  constructor() {
    /** By rising position; a change makes a new list. @type {ActiveSpan[]} */
    this.spans = [];
  }

  /**
   * Let `active` act from `first` on, instead of all that was scheduled from there on.
   *
   * @param {number} first
   * @param {ActiveInterventions} active
   */
  change(first, active) {
    this.spans = this.spans.filter((span) => span.first < first);
    if (this.at(first).digest !== active.digest) this.spans = [...this.spans, { first, active }];
  }

  /** @param {number} position */
  at(position) {
    return activeAt(this.spans, position);
  }

  /** @param {number} position @param {number} limit */
  nextChange(position, limit) {
    return nextChange(this.spans, position, limit);
  }

  /** Text that is equal for equal interventions on the first `n` tokens. @param {number} n */
  digestUpTo(n) {
    const acted = this.spans.filter(({ first }) => first < n);
    return JSON.stringify(acted.map(({ first, active }) => [first, active.digest]));
  }
}

/** No interventions. Shared, so it must not be changed. */
export const EMPTY_SCHEDULE = new InterventionSchedule();
