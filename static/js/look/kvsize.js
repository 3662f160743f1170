// How many bytes keys and values take, and would take if they were kept another way.

/** Bits a number takes in the ways weights are stored, too (gpu/checkpoint/packing.py): 32 to a block, with a
 * float16 scale in q8, and a scale and a minimum in q4. */
const BITS = { f32: 32, f16: 16, q8: 8 + 16 / 32, q4: 4 + 32 / 32 };

/** What the cache is made of: `perToken` bytes of one token in all layers, `bits` of one number. */
export function shapeOf({ model, limits }) {
  const numbers = 2 * model.n_layers * model.n_kv_heads * model.head_dim;
  const perToken = limits.kv_block_bytes / limits.block_tokens;
  const bits = (8 * perToken) / numbers;
  const stored = Object.keys(BITS).find((name) => BITS[name] === bits) ?? `${bits} bit`;
  return { perToken, perLayer: perToken / model.n_layers, bits, stored };
}

/** Where the cache ends for one sequence, in tokens: the context, or all blocks there are. */
export const wallOf = ({ limits }) =>
  Math.min(limits.context, limits.kv_blocks * limits.block_tokens);

/**
 * Ways to keep the same tokens: {name, what, bytes(tokens)}. The first is how it is done here. The
 * others change one thing: heads (Shazeer 2019, Ainslie et al. 2023), bits, or a sliding window.
 */
export function waysOf(hello) {
  const { model } = hello;
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
  for (const name of ["f16", "q8", "q4"]) {
    if (BITS[name] >= bits) continue;
    ways.push({ name, what: `${BITS[name]} bit a number`, bytes: times(BITS[name] / bits) });
  }
  const window = Math.max(1, Math.floor(wallOf(hello) / 4));
  ways.push({
    name: "window",
    what: `the last ${window} tokens`,
    bytes: (tokens) => Math.min(tokens, window) * perToken,
  });
  return ways;
}
