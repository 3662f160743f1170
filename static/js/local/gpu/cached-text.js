// Prefix of a text whose keys and values a slot of the KV cache in the browser holds.

import { activeAt } from "../interventions/active.js";

/** @typedef {import("../interventions/active.js").ActiveSpan} ActiveSpan */

/** Ids whose keys and values are on the device, and the interventions they were computed under. */
export class CachedText {
  /** `spans`: those of an InterventionSchedule. @param {number[]} [ids] @param {ActiveSpan[]} [spans] */
  constructor(ids = [], spans = []) {
    this.ids = ids;
    this.spans = spans;
  }

  get length() {
    return this.ids.length;
  }

  /** The first `n` tokens. @param {number} n */
  upTo(n) {
    return new CachedText(this.ids.slice(0, n), this.spans);
  }

  /** How many tokens both texts begin with whose keys and values are the same. @param {CachedText} other */
  commonPrefix({ ids, spans }) {
    let n = 0;
    while (n < ids.length && n < this.length && ids[n] === this.ids[n]) n++;
    /** @param {ActiveSpan[]} own @param {number} first */
    const digest = (own, first) => activeAt(own, first).digest;
    const edges = [...this.spans, ...spans].map(({ first }) => first);
    const parted = edges.filter((first) => digest(this.spans, first) !== digest(spans, first));
    return Math.min(n, ...parted);
  }
}
