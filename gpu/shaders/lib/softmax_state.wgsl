// Online softmax over a part of the keys, and merging two parts (Milakov & Gimelshein 2018,
// "Online normalizer calculation for softmax"). Scores are in bits: weights are powers of two. Sums
// of products are written as fma: a compiler may fuse them in one kernel and not in another, and
// both must give the same bits.
const LOWEST = -3.0e38;

struct State {
  maximum: f32,  // maximum of the part's scores
  sum: f32,      // Σ 2^(s − maximum)
  weighted: f32, // Σ 2^(s − maximum) · (s − maximum)
}

// Factor of a part's sums when its maximum rises by −drop. Exactly 1 at 0, so that a part without
// new keys changes no bit.
fn rescale_factor(drop: f32) -> f32 { return select(exp2(drop), 1.0, drop == 0.0); }

fn rescaled(part: State, maximum: f32) -> State {
  let drop = part.maximum - maximum;
  let factor = rescale_factor(drop);
  return State(maximum, part.sum * factor, factor * fma(part.sum, drop, part.weighted));
}

fn merged(before: State, after: State) -> State {
  let maximum = max(before.maximum, after.maximum);
  let kept = rescaled(before, maximum);
  let drop = after.maximum - maximum;
  let factor = rescale_factor(drop);
  let weighted = fma(after.sum, drop, after.weighted);
  return State(maximum, fma(after.sum, factor, kept.sum), fma(weighted, factor, kept.weighted));
}

fn merged_values(before: State, v: vec4f, after: State, w: vec4f) -> vec4f {
  let maximum = max(before.maximum, after.maximum);
  let of_after = vec4f(rescale_factor(after.maximum - maximum));
  return fma(w, of_after, v * rescale_factor(before.maximum - maximum));
}

// −Σ p log2 p of the weights p = 2^(s − maximum) / sum.
fn entropy_bits(state: State) -> f32 {
  return max(0.0, log2(state.sum) - state.weighted / state.sum);
}
