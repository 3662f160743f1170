// State of every KV cache block, from the engine's answer to a "cache" query.

import { count, ordinal, plural } from "../../ui/format.js";


/** States of a block: `key` in style sheets, name and description. */
export const STATES = [
  { key: "private", name: "used by one run", what: "holds text being generated; paler: of other clients" },
  { key: "shared", name: "shared by runs", what: "one copy of a common prefix" },
  { key: "full", name: "cached, full", what: "in no use, reusable by its tokens" },
  { key: "partial", name: "cached, partial", what: "reusable too, copied on write" },
  { key: "free", name: "free", what: "nothing to reuse, allocated first" },
];
const PRIVATE = 0;
const SHARED = 1;
const FULL = 2;
const PARTIAL = 3;
const FREE = 4;

/**
 * Parse the answer into what follows; `names`: run → name, of this page's runs.
 *   n, blockTokens, blockBytes   number of blocks; tokens and bytes per block
 *   owners, found, first, used   per block, as in gpu/kv/state.py
 *   groupOf    per block, the group of layers that it is for, an index into groups, or −1
 *   groups     {n_layers, window} of each group (gpu/kv/groups.py); []: all layers share their
 *              blocks and keep the whole text
 *   byWindow   of the layers of each window, {n_layers, window, used}: blocks in use
 *   ownNames   per block, names of this page's runs that use it
 *   byRun      [name, number of blocks] of each run of this page, then of all others
 *   states     per block, an index into STATES
 *   counts     number of blocks by state
 *   nRead, nSaved   blocks in use; blocks saved by sharing
 *   promptTokens, reusedTokens, movedTokens, copies, evictions   totals of all runs so far
 *   hostBlocks, usedHostBlocks, stored, loaded   places in host memory, those in use, and blocks
 *                                                copied there and back so far
 *
 * @param {FrameAnswer} answer
 * @param {ToPage.PageLimits} limits
 * @param {Map<number, string>} names
 */
export function readPool({ arrays, info }, limits, names) {
  const [owners, found, first, used] = ["owners", "n_found", "first", "used"].map((name) =>
    Array.from(arrays[name].values),
  );
  const states = Uint8Array.from(owners, (n, i) => stateOf(n, found[i], info.block_tokens));
  const counts = STATES.map(() => 0);
  for (const state of states) counts[state] += 1;
  return {
    n: owners.length,
    blockTokens: info.block_tokens,
    blockBytes: limits.kv_block_bytes,
    owners,
    found,
    first,
    used,
    ...readOwners(arrays, names),
    ...readGroups(arrays, limits.kv_groups ?? [], states),
    states,
    counts,
    nRead: counts[PRIVATE] + counts[SHARED],
    nSaved: owners.reduce((sum, n) => sum + Math.max(0, n - 1), 0),
    promptTokens: info.prompt_tokens,
    reusedTokens: info.reused_tokens,
    movedTokens: info.moved_tokens ?? 0,
    copies: info.copies,
    evictions: info.evictions,
    hostBlocks: info.host_blocks ?? 0,
    usedHostBlocks: info.used_host_blocks ?? 0,
    stored: info.stored ?? 0,
    loaded: info.loaded ?? 0,
  };
}

/**
 * Return {groupOf, groups, byWindow} of `readPool`.
 *
 * @param {FrameAnswer["arrays"]} arrays
 * @param {ToPage.KvGroupInfo[]} groups
 * @param {Uint8Array} states
 */
function readGroups({ owners, group }, groups, states) {
  const groupOf = group?.values ?? new Float32Array(owners.values.length).fill(-1);
  const byWindow = new Map();
  for (const { n_layers: n, window } of groups) {
    const before = byWindow.get(window)?.n_layers ?? 0;
    byWindow.set(window, { n_layers: before + n, window, used: 0 });
  }
  states.forEach((state, i) => {
    const its = byWindow.get(groups[groupOf[i]]?.window);
    if (its && (state === PRIVATE || state === SHARED)) its.used += 1;
  });
  return { groupOf, groups, byWindow: [...byWindow.values()] };
}

/**
 * Return {ownNames, byRun} of `readPool`.
 *
 * @param {FrameAnswer["arrays"]} arrays
 * @param {Map<number, string>} names
 */
function readOwners({ owners, runs, n_run_blocks: counts, run_blocks: blocks }, names) {
  const ownNames = Array.from(owners.values, () => /** @type {string[]} */ ([]));
  /** @type {[name: string, n: number][]} */
  const byRun = [];
  /** @type {Set<number>} */
  const others = new Set();
  let at = 0;
  runs.values.forEach((run, i) => {
    const own = blocks.values.subarray(at, (at += counts.values[i]));
    const name = names.get(run);
    if (name === undefined) own.forEach((block) => others.add(block));
    else {
      byRun.push([name, own.length]);
      for (const block of own) ownNames[block].push(name);
    }
  });
  if (others.size) byRun.push(["others", others.size]);
  return { ownNames, byRun };
}

/** @param {number} owners @param {number} found @param {number} blockTokens */
function stateOf(owners, found, blockTokens) {
  if (owners) return owners > 1 ? SHARED : PRIVATE;
  if (!found) return FREE;
  return found < blockTokens ? PARTIAL : FULL;
}

/** @param {Pool} pool @param {number} i */
export const isCached = ({ states }, i) => states[i] === FULL || states[i] === PARTIAL;
/** @param {Pool} pool @param {number} i */
export const isOwn = ({ states, ownNames }, i) => states[i] === PRIVATE && ownNames[i].length > 0;
/** @param {Pool} pool @param {number} i */
export const isOthers = ({ states, ownNames }, i) =>
  states[i] === PRIVATE && ownNames[i].length === 0;
/** @param {Pool} pool @param {number} i */
export const isShared = ({ states }, i) => states[i] === SHARED;
/** @param {Pool} pool @param {number} i */
export const isFree = ({ states }, i) => states[i] === FREE;

/**
 * Describe a block: "shared by 2 runs, tokens 1 to 16 of their texts", and in a model with groups of
 * layers "…, for 4 layers with a window of 512 tokens".
 *
 * @param {Pool} pool
 * @param {number} i
 */
export const describeBlock = (pool, i) =>
  [holder(pool, i), tokensOf(pool, i), layersOf(pool, i)].filter(Boolean).join(", ");

/** @param {Pool} pool @param {number} i */
function layersOf({ groups, groupOf, states }, i) {
  const group = states[i] === FREE ? null : groups[groupOf[i]];
  return group ? `for ${describeGroup(group)}` : "";
}

/**
 * "4 layers with a window of 512 tokens", "2 layers that keep the whole text"
 *
 * @param {ToPage.KvGroupInfo} group
 */
export const describeGroup = ({ n_layers: n, window }) =>
  window === null
    ? `${plural(n, "layer")} that ${n === 1 ? "keeps" : "keep"} the whole text`
    : `${plural(n, "layer")} with a window of ${plural(window, "token")}`;

/** @param {Pool} pool @param {number} i */
function holder(pool, i) {
  const { states } = pool;
  if (states[i] === SHARED) return `shared by ${ownersOf(pool, i)}`;
  return states[i] === PRIVATE ? `used by ${ownersOf(pool, i)}` : STATES[states[i]].name;
}

/**
 * Name the runs that use a block: "this answer, column B, a run of another client"; "" if none.
 *
 * @param {Pool} pool
 * @param {number} i
 */
export function ownersOf({ owners, ownNames }, i) {
  const n = owners[i] - ownNames[i].length;
  const others = n > 1 ? `${n} runs of other clients` : n ? "a run of another client" : [];
  return [ownNames[i], others].flat().join(", ");
}

/**
 * What is written on a block that one run of this page uses: "A" for column A, "2" for version 2.
 *
 * @param {Pool} pool
 * @param {number} i
 */
export const markOf = ({ ownNames }, i) => /^(?:column|version) (\w+)$/.exec(ownNames[i][0])?.[1] ?? "";

/** @param {Pool} pool @param {number} i */
function tokensOf({ first, found, states }, i) {
  if (first[i] < 0) return "";
  const text = states[i] === SHARED ? "their texts" : "its text";
  const from = first[i] + 1;
  if (!found[i]) return `from token ${count(from)} of ${text} on`;
  if (found[i] === 1) return `token ${count(from)} of ${text}`;
  return `tokens ${count(from)} to ${count(first[i] + found[i])} of ${text}`;
}

/**
 * Describe a block's rank by last use, and for a cached block its rank in eviction order.
 *
 * @param {Pool} pool
 * @param {number} i
 */
export function recencyOf(pool, i) {
  const { used } = pool;
  if (!used[i]) return "never used";
  const later = used.filter((at) => at > used[i]).length;
  const nth = later ? `${ordinal(later)} most` : "most";
  const use = `${nth} recently used of ${count(used.filter((at) => at > 0).length)}`;
  if (!isCached(pool, i)) return use;
  const earlier = used.filter((at, j) => isCached(pool, j) && at < used[i]).length;
  const nCached = pool.counts[FULL] + pool.counts[PARTIAL];
  return `${use}; ${ordinal(earlier)} of ${count(nCached)} to be evicted`;
}
