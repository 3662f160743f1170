// Rows of texts computed outside of any run, piece by piece (gpu/engine/recompute.py). No step is in
// flight while a piece runs; between pieces the runs go on.

import { EngineError } from "../errors.js";
import { commonPrefix } from "./common-prefix.js";

/** Most rows of a piece beside runs: they wait for it no longer than for a small chunk of a prompt. */
const PIECE_ROWS = 16;

export class Recomputer {
  /**
   *   passes  InspectionPasses
   *   slots   Slots
   *   texts   returns the ids whose keys and values are in each slot
   *   cover   (slot, position): gives a slot its KV blocks; false: there are none left
   *   isIdle  whether no run writes
   *   maxRows most rows of a step
   */
  constructor({ passes, slots, texts, cover, isIdle, maxRows }) {
    Object.assign(this, { passes, slots, texts, cover, isIdle, maxRows });
  }

  /** Most rows of a piece that computes keys and values. */
  get mostRows() {
    return this.isIdle() ? this.maxRows : PIECE_ROWS;
  }

  /** Return the attention of ids[first:] to the keys `key` … `key + n − 1`. Yields after each piece. */
  attention(ids, first, key, n) {
    return this.computed(ids, first, (rows, tables) => this.passes.attention(rows, tables, key, n));
  }

  /** Return the logits after each of ids[first:]. */
  logits(ids, first) {
    const places = Array.from({ length: ids.length - first }, (_, i) => i);
    return this.computed(ids, first, (rows, tables) => this.passes.logits(rows, places, tables));
  }

  /** Return the logits after every layer at the last of `ids`. */
  lens(ids) {
    return this.computed(ids, ids.length - 1, (rows, tables) => this.passes.lens(rows, tables));
  }

  /** Return the experts of ids[first:]. */
  routes(ids, first) {
    return this.computed(ids, first, (rows, tables) => this.passes.routes(rows, tables));
  }

  /**
   * Fill a slot with ids[:first] piece by piece, then return what `ask(rows, tables)` resolves to of
   * the rest. Texts that were evicted between two pieces are computed in one.
   */
  async *computed(ids, first, ask) {
    let filled = 0;
    for (;;) {
      const { slot, n } = this.place(ids, first);
      if (n === first) {
        const answer = await ask(rowsOf(slot, ids, first, ids.length), this.slots.tables);
        this.keep(slot, ids, ids.length);
        return answer;
      }
      const lost = n < filled;
      filled = lost ? first : Math.min(first, n + this.mostRows);
      for (let at = n; at < filled; at += this.maxRows) {
        const end = Math.min(filled, at + this.maxRows);
        await this.passes.fill(rowsOf(slot, ids, at, end), this.slots.tables);
        this.keep(slot, ids, end);
      }
      if (filled < first || !this.isIdle()) yield;
    }
  }

  /**
   * Return {slot, n}: the slot in which ids[first:] can be computed and how many of ids[:first] it
   * has. That is the slot of a run whose text they belong to, for the rows that are computed again
   * get the same bits; else the slot for questions.
   */
  place(ids, first) {
    const texts = this.texts();
    const own = texts.findIndex((text) => belongs(ids, first, text));
    const slot = own < 0 ? this.slots.inspection : own;
    if (!this.cover(slot, ids.length - 1))
      throw new EngineError(
        "queue_full",
        `no KV cache is free for ${ids.length} tokens; wait for the runs to end`,
      );
    return { slot, n: own < 0 ? Math.min(first, this.borrowed(ids)) : first };
  }

  /** Give the slot for questions what it or another slot has of `ids`; return how many these are. */
  borrowed(ids) {
    const { inspection, blockTokens, tables } = this.slots;
    const texts = this.texts();
    const shared = texts.map((text) => commonPrefix(text, ids));
    const mine = shared[inspection];
    const best = shared.indexOf(Math.max(...shared));
    const first = Math.floor(mine / blockTokens);
    const end = Math.floor(shared[best] / blockTokens);
    if (end <= first) {
      this.slots.texts[inspection] = ids.slice(0, mine);
      return mine;
    }
    this.passes.copyBlocks(tables[best].slice(first, end), tables[inspection].slice(first, end));
    this.slots.texts[inspection] = ids.slice(0, end * blockTokens);
    return end * blockTokens;
  }

  /** Note that a slot has ids[:n]; a run knows its own text. */
  keep(slot, ids, n) {
    const { busy, texts } = this.slots;
    if (!busy[slot] && texts[slot].length < n) texts[slot] = ids.slice(0, n);
  }
}

/** Whether computing ids[first:] in the slot of a text takes nothing from the text. */
function belongs(ids, first, text) {
  const common = commonPrefix(text, ids);
  return common >= first && common >= Math.min(text.length, ids.length) && ids.length <= text.length + 1;
}

function rowsOf(slot, ids, first, end) {
  return ids.slice(first, end).map((token, i) => ({ slot, position: first + i, token }));
}
