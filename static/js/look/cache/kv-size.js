// Size of keys and values in bytes, and under other cache layouts.

import { plural } from "../../ui/format.js";

/** What the sizes need to know of a `hello`. @typedef {Pick<ToPage.Hello, "model" | "limits">} Shaped */

/** Storage types of old recordings, by bits. */
const FLOATS = new Map([[32, "f32"], [16, "f16"]]);

/**
 * Return the shape of the cache: bytes per token in all layers (`perToken`) and in one
 * (`perLayer`), `bits` per number including scales, and the storage type (`stored`,
 * gpu/kv/formats.py). With groups of layers (gpu/kv/groups.py) a block is for one group only.
 *
 * @param {Shaped} hello
 */
export function kvShape({ model, limits }) {
  const numbers = 2 * model.n_layers * model.n_kv_heads * model.head_dim;
  const grouped = (limits.kv_groups ?? []).length > 0;
  const blockBytes = grouped ? model.kv_formats[model.kv_dtype] : limits.kv_block_bytes;
  const perToken = blockBytes / limits.block_tokens;
  const bits = (8 * perToken) / numbers;
  const stored = model.kv_dtype ?? FLOATS.get(bits) ?? `${bits} bit`;
  return { perToken, perLayer: perToken / model.n_layers, bits, stored };
}

/**
 * Maximum length of one sequence in tokens: the context, or all blocks.
 *
 * @param {Pick<Shaped, "limits">} hello
 */
export const capacityOf = ({ limits }) =>
  limits.kv_groups?.length
    ? limits.context
    : Math.min(limits.context, limits.kv_blocks * limits.block_tokens);

/**
 * Return the windows of all layers, those of one group together; Infinity: it keeps the whole text.
 *
 * @param {Shaped} hello
 * @returns {number[]}
 */
export const windowsOf = ({ model, limits }) =>
  limits.kv_groups?.length
    ? limits.kv_groups.flatMap(({ n_layers: n, window }) => Array(n).fill(window ?? Infinity))
    : Array(model.n_layers).fill(Infinity);

/**
 * Return alternative cache layouts, {name, word, what, bytes(tokens)}; the first is the current one.
 * `word`: what to look up, if the glossary has it. Each other one changes one thing: KV heads (Shazeer
 * 2019, Ainslie et al. 2023), the storage type (sizes of --kv-dtype as computed by the engine), or a
 * sliding window.
 *
 * @param {Shaped} hello
 * @returns {KvLayout[]}
 */
export function kvLayouts(hello) {
  const { model, limits } = hello;
  const { perToken, perLayer, bits, stored } = kvShape(hello);
  const { n_heads: heads, n_kv_heads: kvHeads } = model;
  const groups = limits.kv_groups ?? [];
  /** @param {number} factor */
  const times = (factor) => (/** @type {number} */ tokens) => tokens * perToken * factor;
  const here = kvHeads === heads ? "a KV head per query head" : `${plural(kvHeads, "KV head")} for ${heads}`;
  const word = kvHeads === heads ? "MHA" : kvHeads === 1 ? "MQA" : "GQA";
  /** @type {KvLayout[]} */
  const layouts = [{ name: "current", word, what: `${word}: ${here}, ${stored}`, bytes: times(1) }];
  if (groups.length) {
    layouts[0].what += ", layers with a window keep only that";
    const windows = windowsOf(hello);
    /** @param {number} tokens */
    const kept = (tokens) => windows.reduce((sum, window) => sum + Math.min(tokens, window), 0);
    layouts[0].bytes = (tokens) => perLayer * kept(tokens);
    layouts.push({ name: "all kept", what: "every layer keeps the whole text", bytes: times(1) });
  }
  if (kvHeads < heads)
    layouts.push({
      name: "MHA",
      word: "MHA",
      what: `${heads} KV heads for ${heads}`,
      bytes: times(heads / kvHeads),
    });
  else if (heads % 4 === 0 && heads > 4)
    layouts.push({
      name: "GQA",
      word: "GQA",
      what: `${plural(heads / 4, "KV head")} for ${heads}`,
      bytes: times(1 / 4),
    });
  if (kvHeads > 1)
    layouts.push({
      name: "MQA",
      word: "MQA",
      what: `1 KV head for ${heads}`,
      bytes: times(1 / kvHeads),
    });
  for (const [name, size] of Object.entries(model.kv_formats ?? {})) {
    const blockBytes = perToken * limits.block_tokens;
    if (size >= blockBytes) continue;
    const factor = size / blockBytes;
    const each = Math.round(100 * bits * factor) / 100;
    layouts.push({ name, what: `${each} bits per number`, bytes: times(factor) });
  }
  const window = Math.max(1, Math.floor(capacityOf(hello) / 4));
  layouts.push({
    name: "sliding window",
    word: "sliding window",
    what: `the last ${window} tokens`,
    bytes: (tokens) => Math.min(tokens, window) * perToken,
  });
  return layouts;
}
