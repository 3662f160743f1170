// Logits as integers of the same order, and how the sampler's two shaders lay out a row of them.
//
// A row of keys holds the vocabulary's keys, four to a quad; then, by strip, its greatest key, the
// mass of its scaled logits below that, its largest raw logit and the mass of its raw logits below
// that (the last three as bits of f32). A strip is the tokens one lane of `sample_keys` reads; a
// slice those of one of its workgroups. Where a row is longer than the vocabulary, keys are 0.
override SLICES: u32;
override STRIP_QUADS: u32;
override SLICE_LANES: u32;

const NO_KEY = 0xffffffffu;

// Order-preserving: a < b exactly when its key is smaller. 0 and NO_KEY are no logit's key.
fn keys_of(v: vec4f) -> vec4u {
  let bits = bitcast<vec4u>(v);
  let keys = select(bits | vec4u(0x80000000u), ~bits, (bits & vec4u(0x80000000u)) != vec4u());
  return clamp(keys, vec4u(1u), vec4u(NO_KEY - 1u));
}

fn key_of(v: f32) -> u32 { return keys_of(vec4f(v)).x; }

fn logits_of(keys: vec4u) -> vec4f {
  let positive = (keys & vec4u(0x80000000u)) != vec4u();
  return bitcast<vec4f>(select(~keys, keys & vec4u(0x7fffffffu), positive));
}

fn logit_of(key: u32) -> f32 { return logits_of(vec4u(key)).x; }

fn strips() -> u32 { return SLICES * SLICE_LANES; }

// Quads of a row: the keys, and one for each four strips in each of the four parts behind them.
fn token_quads() -> u32 { return strips() * STRIP_QUADS; }

fn row_quads() -> u32 { return token_quads() + strips(); }

// Which quad of the row is the i-th of a strip. Neighbouring lanes read neighbouring quads.
fn strip_quad(strip: u32, i: u32) -> u32 {
  let slice = strip / SLICE_LANES;
  return (slice * STRIP_QUADS + i) * SLICE_LANES + strip % SLICE_LANES;
}
