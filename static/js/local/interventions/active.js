// @ts-nocheck
// Interventions that act on the passes of a sequence, as data (gpu/interventions/active.py).

import { InvalidRequest } from "../shared/errors.js";

/** Interventions in the passes of one sequence; what is not named is left alone, bit for bit. */
export class ActiveInterventions {
  /**
   *   heads, attention, mlp  [{layer, head, factor}], factors on what each puts out
   *   steer                  layer → {vector, name}: added to the residual stream before the layer
   *   patch                  layer → {vector, name}: what the stream becomes; it is steered after that
   *   loras                  [{name, strength}] of adapters; 0 is off, as are those that are not named
   *
   * A vector is a Float32Array of the model's width. Its name says what it was computed from: equal
   * names are equal vectors.
   */
  constructor({
    heads = [], attention = [], mlp = [], steer = new Map(), patch = new Map(), loras = [],
  } = {}) {
    Object.assign(this, { heads, attention, mlp, steer, patch, loras });
    const steers = [...steer].filter(([, { vector }]) => vector.some(Boolean));
    const parts = [changed(heads), changed(attention), changed(mlp), named(steers), named([...patch])];
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
    for (const [does, vectors] of [["steers", this.steer], ["patches", this.patch]])
      for (const [layer, { vector }] of vectors)
        if (!vector.every(Number.isFinite))
          throw new InvalidRequest(
            `the vector that ${does} layer ${layer} has shape (${vector.length},); give ` +
              `${vector.length} finite numbers`,
            "reach",
          );
  }
}

const byPlace = ([layer, head], [otherLayer, otherHead]) => layer - otherLayer || head - otherHead;

const changed = (factors) =>
  factors
    .filter(({ factor }) => factor !== 1)
    .map(({ layer, head = 0, factor }) => [layer, head, factor])
    .sort(byPlace);

function digestOf(loras) {
  const on = loras.filter(({ strength }) => strength !== 0);
  const listed = on.map(({ name, strength }) => [name, strength]).sort(([a], [b]) => (a < b ? -1 : 1));
  return on.length ? JSON.stringify({ loras: listed }) : "";
}

const named = (vectors) => vectors.map(([layer, { name }]) => [layer, name]).sort(([a], [b]) => a - b);

export const NONE_ACTIVE = new ActiveInterventions();

/** Interventions on the token at `position`. `spans`: those of an InterventionSchedule. */
export const activeAt = (spans, position) =>
  spans.findLast(({ first }) => first <= position)?.active ?? NONE_ACTIVE;

/** First position after `position` with other interventions, at most `limit`. */
export function nextChange(spans, position, limit) {
  const next = spans.find(({ first }) => first > position);
  return next ? Math.min(limit, next.first) : limit;
}

/** Interventions by the position of a text from which they act, until the next one. */
export class InterventionSchedule {
  constructor() {
    /** [{first, active}] by rising position; a change makes a new list. */
    this.spans = [];
  }

  /** Let `active` act from `first` on, instead of all that was scheduled from there on. */
  change(first, active) {
    this.spans = this.spans.filter((span) => span.first < first);
    if (this.at(first).digest !== active.digest) this.spans = [...this.spans, { first, active }];
  }

  at(position) {
    return activeAt(this.spans, position);
  }

  nextChange(position, limit) {
    return nextChange(this.spans, position, limit);
  }

  /** Text that is equal for equal interventions on the first `n` tokens. */
  digestUpTo(n) {
    const acted = this.spans.filter(({ first }) => first < n);
    return JSON.stringify(acted.map(({ first, active }) => [first, active.digest]));
  }
}

/** No interventions. Shared, so it must not be changed. */
export const EMPTY_SCHEDULE = new InterventionSchedule();
