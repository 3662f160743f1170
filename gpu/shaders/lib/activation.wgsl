// Activation function of an MLP.
override ACTIVATION: u32 = 0u; // 0 none, 1 silu, 2 gelu_tanh, 3 gelu, 4 relu

const ROOT_2_OVER_PI = 0.7978845608028654;

fn silu(v: f32) -> f32 { return v / (1.0 + exp(-v)); }

// v / 2 · (1 + tanh(√(2/π) (v + 0.044715 v³))) (Hendrycks & Gimpel 2016), written as v · sigmoid of
// twice the argument, which has no cancellation.
fn gelu_tanh(v: f32) -> f32 {
  return v / (1.0 + exp(-2.0 * ROOT_2_OVER_PI * (v + 0.044715 * v * v * v)));
}

// v · Φ(v), Φ the normal distribution: its tail by Abramowitz & Stegun 7.1.26, within 1.5e-7.
fn gelu(v: f32) -> f32 {
  let z = abs(v) * 0.7071067811865476;
  let t = 1.0 / (1.0 + 0.3275911 * z);
  let sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741
    + t * (-1.453152027 + t * 1.061405429))));
  let tail = 0.5 * sum * exp(-z * z);
  return v * select(tail, 1.0 - tail, v > 0.0);
}

fn activated(v: f32) -> f32 {
  if (ACTIVATION == 1u) { return silu(v); }
  if (ACTIVATION == 2u) { return gelu_tanh(v); }
  if (ACTIVATION == 3u) { return gelu(v); }
  if (ACTIVATION == 4u) { return max(v, 0.0); }
  return v;
}
