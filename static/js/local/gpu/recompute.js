// Rows of texts computed outside of any run, piece by piece (gpu/engine/recompute.py). No step is in
// flight while a piece runs; between pieces the runs go on.
//
// A `schedule` has the interventions that a text is computed under. Rows that are asked for together
// must be under the same ones.

import { EngineError } from "../shared/errors.js";
import { EMPTY_SCHEDULE, activeAt, nextChange } from "../interventions/active.js";
import { CachedText } from "./cached-text.js";

/** Most rows of a piece while there are runs: they wait for it no longer than for a small chunk of a prompt. */
const PIECE_ROWS = 16;

/**
 * @typedef {import("../interventions/active.js").InterventionSchedule} InterventionSchedule
 * @typedef {import("./inspection-passes.js").TextPart} TextPart
 */

export class Recomputer {
  /**
   *   texts   returns what is in each slot
   *   cover   (slot, position): gives a slot its KV blocks; false: there are none left
   *   isIdle  whether no run writes
   *   maxRows most rows of a step
   *
   * @param {{
   *   passes: import("./inspection-passes.js").InspectionPasses, slots: import("./slots.js").Slots,
   *   texts: () => CachedText[], cover: (slot: number, position: number) => boolean,
   *   isIdle: () => boolean, maxRows: number,
   * }} parts
   */
  constructor({ passes, slots, texts, cover, isIdle, maxRows }) {
    this.passes = passes;
    this.slots = slots;
    this.texts = texts;
    this.cover = cover;
    this.isIdle = isIdle;
    this.maxRows = maxRows;
  }

  /** Most rows of a piece that computes keys and values. */
  get mostRows() {
    return this.isIdle() ? this.maxRows : PIECE_ROWS;
  }

  /**
   * Return the attention of ids[first:] to the keys `key` … `key + n − 1`. Yields after each piece.
   *
   * @param {number[]} ids
   * @param {number} first
   * @param {number} key
   * @param {number} n
   * @param {InterventionSchedule} [schedule]
   */
  attention(ids, first, key, n, schedule = EMPTY_SCHEDULE) {
    return this.computed(ids, first, schedule, (part) => this.passes.attention(part, key, n));
  }

  /**
   * Return the logits after each of ids[first:].
   *
   * @param {number[]} ids
   * @param {number} first
   * @param {InterventionSchedule} [schedule]
   */
  logits(ids, first, schedule = EMPTY_SCHEDULE) {
    return this.computed(ids, first, schedule, (part) => this.passes.logits(part));
  }

  /**
   * Return the logits after every layer at the last of `ids`.
   *
   * @param {number[]} ids
   * @param {InterventionSchedule} [schedule]
   */
  lens(ids, schedule = EMPTY_SCHEDULE) {
    return this.computed(ids, ids.length - 1, schedule, (part) => this.passes.lens(part));
  }

  /**
   * Return the residual stream at the last of `ids` before every layer and after the last.
   *
   * @param {number[]} ids
   */
  states(ids) {
    return this.computed(ids, ids.length - 1, EMPTY_SCHEDULE, (part) => this.passes.states(part));
  }

  /**
   * Return the experts of ids[first:].
   *
   * @param {number[]} ids
   * @param {number} first
   * @param {InterventionSchedule} [schedule]
   */
  routes(ids, first, schedule = EMPTY_SCHEDULE) {
    return this.computed(ids, first, schedule, (part) => this.passes.routes(part));
  }

  /**
   * Return the GPU milliseconds of each dispatch of a recorded plan for `n` rows after `context`
   * tokens; null: the device has no timestamps. What the tokens are changes no time.
   *
   * @param {Exported.RecordedStep} recorded
   * @param {number} n
   * @param {number} context
   */
  times(recorded, n, context) {
    const slot = this.slots.inspection;
    const end = context + n;
    this.slots.evict(slot, context); // the rows take the place of what is cached after them
    this.reserve(slot, end);
    return this.passes.times(recorded, this.part(slot, new CachedText(Array(end).fill(0)), context, end));
  }

  /**
   * Fill a slot with ids[:first] piece by piece, then return what `ask(part)` resolves to of the rest.
   * Texts that were evicted between two pieces are computed in one.
   *
   * @template T
   * @param {number[]} ids
   * @param {number} first
   * @param {InterventionSchedule} schedule
   * @param {(part: TextPart) => Promise<T>} ask
   * @returns {Pieces<T>}
   */
  async *computed(ids, first, { spans }, ask) {
    const text = new CachedText(ids, spans);
    let filled = 0;
    for (;;) {
      const { slot, n } = this.place(text, first);
      if (n === first) {
        const answer = await ask(this.part(slot, text, first, ids.length));
        this.slots.keep(slot, text, ids.length);
        return answer;
      }
      const lost = n < filled;
      filled = lost ? first : Math.min(first, n + this.mostRows);
      await this.fill(slot, text, n, filled);
      if (filled < first || !this.isIdle()) yield;
    }
  }

  /**
   * Compute keys and values of the tokens `first` … `end − 1`.
   *
   * @param {number} slot
   * @param {CachedText} text
   * @param {number} first
   * @param {number} end
   */
  async fill(slot, text, first, end) {
    for (let at = first; at < end; ) {
      const next = nextChange(text.spans, at, Math.min(end, at + this.maxRows));
      await this.passes.fill(this.part(slot, text, at, next));
      this.slots.keep(slot, text, next);
      at = next;
    }
  }

  /**
   * The part of a text that `passes` take.
   *
   * @param {number} slot
   * @param {CachedText} text
   * @param {number} first
   * @param {number} end
   * @returns {TextPart}
   */
  part(slot, { ids, spans }, first, end) {
    const rows = ids.slice(first, end).map((token, i) => ({ slot, position: first + i, token }));
    return { rows, active: activeAt(spans, first), tables: this.slots.tables };
  }

  /**
   * Return {slot, n}: the slot in which the tokens from `first` on can be computed and how many of
   * those before it has. That is the slot of a run whose text they belong to, for the rows that are
   * computed again get the same bits; else the slot for questions.
   *
   * @param {CachedText} text
   * @param {number} first
   */
  place(text, first) {
    const texts = this.texts();
    const own = texts.findIndex((other) => belongs(text, first, other));
    const slot = own < 0 ? this.slots.inspection : own;
    this.reserve(slot, text.length);
    return { slot, n: own < 0 ? Math.min(first, this.borrowed(text)) : first };
  }

  /**
   * Give a slot the KV blocks of `n` tokens. Throws EngineError if there are none left.
   *
   * @param {number} slot
   * @param {number} n
   */
  reserve(slot, n) {
    if (this.cover(slot, n - 1)) return;
    throw new EngineError("queue_full", `no KV cache is free for ${n} tokens; wait for the runs to end`);
  }

  /**
   * Give the slot for questions what it or another slot has of a text; return how many tokens.
   *
   * @param {CachedText} text
   */
  borrowed(text) {
    const { inspection, blockTokens, tables } = this.slots;
    const shared = this.texts().map((other) => text.commonPrefix(other));
    const mine = shared[inspection];
    const best = shared.indexOf(Math.max(...shared));
    const first = Math.floor(mine / blockTokens);
    const end = Math.floor(shared[best] / blockTokens);
    if (end <= first) {
      this.slots.texts[inspection] = text.upTo(mine);
      return mine;
    }
    this.passes.copyBlocks(tables[best].slice(first, end), tables[inspection].slice(first, end));
    this.slots.texts[inspection] = text.upTo(end * blockTokens);
    return end * blockTokens;
  }
}

/**
 * Whether computing the tokens of `text` from `first` on in the slot of `other` takes nothing from it.
 *
 * @param {CachedText} text
 * @param {number} first
 * @param {CachedText} other
 */
function belongs(text, first, other) {
  const common = text.commonPrefix(other);
  const isWhole = common >= Math.min(text.length, other.length);
  return common >= first && isWhole && text.length <= other.length + 1;
}
