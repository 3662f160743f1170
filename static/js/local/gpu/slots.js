// Slots of the device and their KV blocks: which text is in which, and what of it a new run can use.

import { CachedText } from "./cached-text.js";

export class Slots {
  /** @param {{limits: Pick<Exported.PlanLimits, "slots" | "inspection_slot" | "n_blocks" | "block_tokens">}} plan */
  constructor({ limits }) {
    const { slots, inspection_slot: inspection, n_blocks: nBlocks, block_tokens: blockTokens } = limits;
    const all = { length: slots + 1 }; // the last one is for questions
    /** The slot in which questions compute texts that no run has. */
    this.inspection = inspection;
    this.blockTokens = blockTokens;
    this.nBlocks = nBlocks;
    this.freeBlocks = Array.from({ length: nBlocks }, (_, i) => nBlocks - 1 - i);
    /** KV blocks of each slot, in order. @type {number[][]} */
    this.tables = Array.from(all, () => []);
    /** CachedText in the blocks of each slot. */
    this.texts = Array.from(all, () => new CachedText());
    this.busy = Array.from({ length: slots }, () => false);
    /** Number of the last use of each slot, and of each block: larger is later, 0 is never. */
    this.lastUse = Array.from(all, () => 0);
    this.lastBlockUse = new Uint32Array(nBlocks);
    this.nUses = 0;
    /** Totals: tokens of all prompts, those that were found, and cached blocks that were lost. */
    this.nPrompt = 0;
    this.nReused = 0;
    this.nEvicted = 0;
  }

  /**
   * Take a slot for a run with this CachedText: the one that has most of it already, else the one that
   * was idle longest. Return {slot, reused}, or null while all are busy. The last id is never
   * counted as reused: its logits are needed. `isNew`: the run had none before.
   *
   * @param {CachedText} text
   * @param {boolean} [isNew]
   */
  take(text, isNew = true) {
    const idle = this.busy.flatMap((busy, slot) => (busy ? [] : [slot]));
    if (!idle.length) return null;
    const found = idle.map((slot) => ({
      slot,
      reused: Math.min(text.commonPrefix(this.texts[slot]), text.length - 1),
    }));
    found.sort((a, b) => b.reused - a.reused || this.lastUse[a.slot] - this.lastUse[b.slot]);
    const [best] = found;
    this.busy[best.slot] = true;
    this.evict(best.slot, best.reused);
    this.touch(best.slot);
    if (isNew) {
      this.nPrompt += text.length;
      this.nReused += best.reused;
    }
    return best;
  }

  /**
   * Free the slot of a run that ended or was preempted, and keep its text; `computed`: the part whose
   * keys and values are there.
   *
   * @param {number} slot
   * @param {CachedText} computed
   */
  release(slot, computed) {
    this.texts[slot] = computed;
    this.busy[slot] = false;
    this.cut(slot, computed.length);
    this.touch(slot);
  }

  /**
   * Note that a slot has the first `n` tokens of a text; a run knows its own text.
   *
   * @param {number} slot
   * @param {CachedText} text
   * @param {number} n
   */
  keep(slot, text, n) {
    if (this.busy[slot] || this.texts[slot].length >= n) return;
    this.texts[slot] = text.upTo(n);
    this.touch(slot);
  }

  /**
   * Give a slot blocks up to `position`; return the new ones and the place of the first. Texts of idle
   * slots make room, the one idle longest first. Null: there is none.
   *
   * @param {number} slot
   * @param {number} position
   */
  cover(slot, position) {
    const table = this.tables[slot];
    const first = table.length;
    const lacking = this.blocksOf(position + 1) - first;
    if (lacking <= 0) return { first, blocks: [] };
    while (this.freeBlocks.length < lacking) if (!this.evictOne(slot)) return null;
    const blocks = this.freeBlocks.splice(-lacking).reverse();
    table.push(...blocks);
    this.touch(slot);
    return { first, blocks };
  }

  /** Number of blocks that hold `n` tokens. @param {number} n */
  blocksOf(n) {
    return Math.ceil(n / this.blockTokens);
  }

  // ---- their parts -------------------------------------------------------------------------

  /** @param {number} except */
  evictOne(except) {
    const idle = this.tables
      .map((table, slot) => ({ table, slot }))
      .filter(({ table, slot }) => slot !== except && !this.busy[slot] && table.length);
    if (!idle.length) return false;
    idle.sort((a, b) => this.lastUse[a.slot] - this.lastUse[b.slot]);
    this.evict(idle[0].slot, 0);
    return true;
  }

  /**
   * Give up what a slot has cached after its first `most` tokens.
   *
   * @param {number} slot
   * @param {number} most
   */
  evict(slot, most) {
    const cached = this.texts[slot].length;
    const n = Math.min(most, cached);
    this.nEvicted += this.blocksOf(cached) - this.blocksOf(n);
    this.texts[slot] = this.texts[slot].upTo(n);
    this.cut(slot, n);
  }

  /**
   * Free the blocks after those of the first `n` tokens. Steps in flight may still write to them: what
   * another slot does with them comes after that.
   *
   * @param {number} slot
   * @param {number} n
   */
  cut(slot, n) {
    this.freeBlocks.push(...this.tables[slot].splice(this.blocksOf(n)).reverse());
  }

  /** Note a use of a slot and its blocks. @param {number} slot */
  touch(slot) {
    this.lastUse[slot] = ++this.nUses;
    for (const block of this.tables[slot]) this.lastBlockUse[block] = this.nUses;
  }
}
