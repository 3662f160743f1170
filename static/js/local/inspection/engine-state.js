// Answers about the engine itself, from what it keeps of its slots and steps
// (gpu/inspection/readings.py, gpu/inspection/steps.py).

import { floats, ints } from "./arrays.js";

/**
 * Return the contents of every KV block (`CacheBlocks` of gpu/inspection/requests.py).
 *
 *   texts  ids whose keys and values are in each slot
 *   runs   those that have a slot, in the order they started
 *
 * @param {import("../gpu/slots.js").Slots} slots
 * @param {{length: number}[]} texts
 * @param {{run: number, slot: number}[]} runs
 * @returns {InspectionAnswer}
 */
export function cacheAnswer(slots, texts, runs) {
  const { blockTokens, nBlocks, tables } = slots;
  const owners = new Uint32Array(nBlocks);
  const found = new Uint32Array(nBlocks);
  const first = new Float32Array(nBlocks).fill(-1);
  const owned = new Set(runs.map(({ slot }) => slot));
  tables.forEach((table, slot) => {
    table.forEach((block, i) => {
      const at = i * blockTokens;
      const n = Math.min(blockTokens, Math.max(0, texts[slot].length - at));
      if (owned.has(slot)) owners[block] = 1;
      found[block] = n;
      if (n || owned.has(slot)) first[block] = at;
    });
  });
  return {
    info: {
      block_tokens: blockTokens,
      prompt_tokens: slots.nPrompt,
      reused_tokens: slots.nReused,
      copies: 0, // a text that parts from its slot's goes on in the same block
      evictions: slots.nEvicted,
      host_blocks: 0,
      used_host_blocks: 0,
      stored: 0,
      loaded: 0,
      moved_tokens: 0,
    },
    arrays: {
      owners: ints(owners),
      n_found: ints(found),
      used: ints(slots.lastBlockUse),
      first: floats(first),
      runs: ints(runs.map(({ run }) => run)),
      n_run_blocks: ints(runs.map(({ slot }) => tables[slot].length)),
      run_blocks: ints(runs.flatMap(({ slot }) => tables[slot])),
    },
  };
}

/**
 * Return steps as `RecentSteps` of gpu/inspection/requests.py has them.
 *
 * @param {import("../gpu/step-log.js").LoggedStep[]} steps
 * @returns {InspectionAnswer}
 */
export function stepsAnswer(steps) {
  const parts = steps.flatMap((step) => step.parts);
  return {
    info: {},
    arrays: {
      numbers: ints(steps.map(({ number }) => number)),
      ms: floats(steps.map(({ ms }) => ms)),
      n_parts: ints(steps.map((step) => step.parts.length)),
      parts: ints(parts.flat(), [parts.length, 4]),
    },
  };
}
