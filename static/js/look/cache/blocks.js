// What each block of the KV cache holds, from the engine's answer to the question "cache".

import { count, ordinal, plural } from "../format.js";

/** What a block can be: its `key` in style sheets, and in words. */
export const STATES = [
  { key: "one", name: "read by one run", what: "a text that is being written" },
  { key: "shared", name: "shared by several", what: "the same beginning, once" },
  { key: "full", name: "kept, full", what: "read by none, found by its tokens" },
  { key: "begun", name: "kept, begun", what: "found too, copied to go on" },
  { key: "blank", name: "blank", what: "nothing to be found, taken first" },
];
const ONE = 0;
const SHARED = 1;
const FULL = 2;
const BEGUN = 3;
const BLANK = 4;

/**
 * The answer, read:
 *   n, blockTokens, blockBytes   blocks, tokens and bytes of one
 *   owners, found, first, used   of each block, as gpu/kv/state.py has them
 *   states     of each block, a place in STATES
 *   counts     of blocks, by place in STATES
 *   nRead, nSaved   blocks that runs read; those that there would be more if nothing was shared
 *   promptTokens, reusedTokens, copies, evictions   of all runs so far
 */
export function readPool({ arrays, info }, blockBytes) {
  const [owners, found, first, used] = ["owners", "n_found", "first", "used"].map(
    (name) => arrays[name].values,
  );
  const states = Uint8Array.from(owners, (n, i) => stateOf(n, found[i], info.block_tokens));
  const counts = STATES.map(() => 0);
  for (const state of states) counts[state] += 1;
  return {
    n: owners.length,
    blockTokens: info.block_tokens,
    blockBytes,
    owners,
    found,
    first,
    used,
    states,
    counts,
    nRead: counts[ONE] + counts[SHARED],
    nSaved: owners.reduce((sum, n) => sum + Math.max(0, n - 1), 0),
    promptTokens: info.prompt_tokens,
    reusedTokens: info.reused_tokens,
    copies: info.copies,
    evictions: info.evictions,
  };
}

function stateOf(owners, found, blockTokens) {
  if (owners) return owners > 1 ? SHARED : ONE;
  if (!found) return BLANK;
  return found < blockTokens ? BEGUN : FULL;
}

export const isKept = ({ states }, i) => states[i] === FULL || states[i] === BEGUN;
export const isOwn = ({ states }, i) => states[i] === ONE;
export const isShared = ({ states }, i) => states[i] === SHARED;
export const isBlank = ({ states }, i) => states[i] === BLANK;

/** What a block holds, in words: "shared by 2 runs, tokens 1 to 16 of their texts". */
export const holdingOf = (pool, i) =>
  [holder(pool, i), tokensOf(pool, i)].filter(Boolean).join(", ");

function holder({ states, owners }, i) {
  return states[i] === SHARED ? `shared by ${plural(owners[i], "run")}` : STATES[states[i]].name;
}

function tokensOf({ first, found, states }, i) {
  if (first[i] < 0) return "";
  const text = states[i] === SHARED ? "their texts" : "its text";
  const from = first[i] + 1;
  if (!found[i]) return `from token ${count(from)} of ${text} on`;
  if (found[i] === 1) return `token ${count(from)} of ${text}`;
  return `tokens ${count(from)} to ${count(first[i] + found[i])} of ${text}`;
}

/** When it was last taken, found or given back, among all blocks; and of a kept one when it goes. */
export function recencyOf(pool, i) {
  const { used } = pool;
  if (!used[i]) return "never used";
  const later = used.reduce((n, at) => n + (at > used[i]), 0);
  const nth = later ? `${ordinal(later)} most` : "most";
  const use = `${nth} recently used of ${count(used.reduce((n, at) => n + (at > 0), 0))}`;
  if (!isKept(pool, i)) return use;
  const before = used.reduce((n, at, j) => n + (isKept(pool, j) && at < used[i]), 0);
  const nKept = pool.counts[FULL] + pool.counts[BEGUN];
  return `${use}; ${ordinal(before)} of ${count(nKept)} to be evicted`;
}
