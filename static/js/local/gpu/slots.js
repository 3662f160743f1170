// Slots of the device and their KV blocks: which text is in which, and what of it a new run can use.

import { CachedText } from "./cached-text.js";

export class Slots {
  constructor({ limits }) {
    const { slots, inspection_slot: inspection, n_blocks: nBlocks, block_tokens: blockTokens } = limits;
    const all = { length: slots + 1 }; // the last one is for questions
    /** The slot in which questions compute texts that no run has. */
    this.inspection = inspection;
    this.blockTokens = blockTokens;
    this.freeBlocks = Array.from({ length: nBlocks }, (_, i) => nBlocks - 1 - i);
    /** KV blocks of each slot, in order. */
    this.tables = Array.from(all, () => []);
    /** CachedText in the blocks of each slot. */
    this.texts = Array.from(all, () => new CachedText());
    this.busy = Array.from({ length: slots }, () => false);
    this.lastUse = Array.from(all, () => 0);
    this.nUses = 0;
  }

  /**
   * Take a slot for a run with this CachedText: the one that has most of it already, else the one that
   * was idle longest. Return {slot, reused}, or null while all are busy. The last id is never
   * counted as reused: its logits are needed.
   */
  take(text) {
    const idle = this.busy.flatMap((busy, slot) => (busy ? [] : [slot]));
    if (!idle.length) return null;
    const found = idle.map((slot) => ({
      slot,
      reused: Math.min(text.commonPrefix(this.texts[slot]), text.length - 1),
    }));
    found.sort((a, b) => b.reused - a.reused || this.lastUse[a.slot] - this.lastUse[b.slot]);
    const [best] = found;
    this.busy[best.slot] = true;
    this.texts[best.slot] = this.texts[best.slot].upTo(best.reused);
    return best;
  }

  /** Keep the text of a finished run; `computed`: the part whose keys and values are there. */
  release(slot, computed) {
    this.texts[slot] = computed;
    this.busy[slot] = false;
    this.lastUse[slot] = ++this.nUses;
  }

  /**
   * Give a slot blocks up to `position`; return the index of the first new one, or null if it has
   * enough. Texts of idle slots make room, the one idle longest first. False: there is none.
   */
  cover(slot, position) {
    const table = this.tables[slot];
    const wanted = Math.floor(position / this.blockTokens) + 1;
    const before = table.length;
    if (before >= wanted) return null;
    while (this.freeBlocks.length < wanted - before) if (!this.evict(slot)) return false;
    while (table.length < wanted) table.push(this.freeBlocks.pop());
    return before;
  }

  evict(except) {
    const idle = this.tables
      .map((table, slot) => ({ table, slot }))
      .filter(({ table, slot }) => slot !== except && !this.busy[slot] && table.length);
    if (!idle.length) return false;
    idle.sort((a, b) => this.lastUse[a.slot] - this.lastUse[b.slot]);
    const { slot, table } = idle[0];
    this.freeBlocks.push(...table.splice(0).reverse());
    this.texts[slot] = new CachedText();
    return true;
  }
}
