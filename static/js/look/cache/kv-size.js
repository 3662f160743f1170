// How many bytes keys and values take, and would take if they were kept another way.

/** How recordings stored numbers that do not say it. */
const FLOATS = { 32: "f32", 16: "f16" };

/**
 * What the cache is made of: `perToken` bytes of one token in all layers, `bits` of one number with
 * its share of scales, and how they are `stored` (gpu/kv/formats.py).
 */
export function shapeOf({ model, limits }) {
  const numbers = 2 * model.n_layers * model.n_kv_heads * model.head_dim;
  const perToken = limits.kv_block_bytes / limits.block_tokens;
  const bits = (8 * perToken) / numbers;
  const stored = model.kv_dtype ?? FLOATS[bits] ?? `${bits} bit`;
  return { perToken, perLayer: perToken / model.n_layers, bits, stored };
}

/** Where the cache ends for one sequence, in tokens: the context, or all blocks there are. */
export const wallOf = ({ limits }) =>
  Math.min(limits.context, limits.kv_blocks * limits.block_tokens);

/**
 * Ways to keep the same tokens: {name, what, bytes(tokens)}. The first is how it is done here. The
 * others change one thing: heads (Shazeer 2019, Ainslie et al. 2023), how numbers are stored (as
 * --kv-dtype would, in the bytes that the engine worked out for this model), or a sliding window.
 */
export function waysOf(hello) {
  const { model, limits } = hello;
  const { perToken, bits, stored } = shapeOf(hello);
  const { n_heads: heads, n_kv_heads: kept } = model;
  const times = (factor) => (tokens) => tokens * perToken * factor;
  const here = kept === heads ? "a head for every query head" : `${kept} heads for ${heads}`;
  const ways = [{ name: "as here", what: `${here}, ${stored}`, bytes: times(1) }];
  if (kept < heads)
    ways.push({ name: "not grouped", what: `${heads} heads for ${heads}`, bytes: times(heads / kept) });
  else if (heads % 4 === 0 && heads > 4)
    ways.push({ name: "grouped", what: `${heads / 4} heads for ${heads}`, bytes: times(1 / 4) });
  if (kept > 1) ways.push({ name: "one head", what: `1 head for ${heads}`, bytes: times(1 / kept) });
  for (const [name, size] of Object.entries(model.kv_formats ?? {})) {
    if (size >= limits.kv_block_bytes) continue;
    const factor = size / limits.kv_block_bytes;
    const each = Math.round(100 * bits * factor) / 100;
    ways.push({ name, what: `${each} bit a number`, bytes: times(factor) });
  }
  const window = Math.max(1, Math.floor(wallOf(hello) / 4));
  ways.push({
    name: "window",
    what: `the last ${window} tokens`,
    bytes: (tokens) => Math.min(tokens, window) * perToken,
  });
  return ways;
}
