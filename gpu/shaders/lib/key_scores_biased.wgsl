// Scores of keys in attention.wgsl in bits: cap(q · k · scale) + a learned bias of the head by the
// distance of the key (T5, Raffel et al. 2020; MPNet, Song et al. 2020).
//
// position_biases  [N_HEADS][2 · MAX_DISTANCE + 1] in bits, of keys from MAX_DISTANCE before the
//                  row to as far after it; the first and the last are also those of keys beyond
// use: soft_cap
override MAX_DISTANCE: u32;

@group(0) @binding(11) var<storage, read> position_biases: array<f32>;

fn position_bias(row: u32, head: u32, key: u32) -> f32 {
  let own = step.rows[row].position;
  let first = own - min(own, MAX_DISTANCE);
  let at = min(max(key, first) + MAX_DISTANCE - own, 2u * MAX_DISTANCE);
  return position_biases[head * (2u * MAX_DISTANCE + 1u) + at];
}

// fma: a compiler that fuses some sums and not others would give each variant other bits.
fn scores_of(sums: vec4f, biases: vec4f) -> vec4f {
  if (CAP == 0.0) { return fma(sums, vec4f(SCALE), biases); }
  return soft_cap(sums * SCALE) + biases;
}
