// Logits as integers in the same order, and the layout of a row of them between the sampler's two
// shaders.
//
// A row holds the vocabulary's keys, four to a quad; then, by strip, its greatest key, the mass of
// its scaled logits relative to that, its largest raw logit and the mass of its raw logits relative
// to that, and how much of this is of allowed tokens (only with a grammar; the last four as bits of
// f32). A strip is the tokens that one lane of `logit_sort_keys` reads, a slice those of one
// workgroup. Past the vocabulary, and of tokens that a grammar forbids, keys are 0.
override SLICES: u32;
override STRIP_QUADS: u32;
override SLICE_LANES: u32;

const NO_SORT_KEY = 0xffffffffu;
const N_SUMMARIES = 5u; // summaries of a strip

// Order-preserving: key(a) < key(b) exactly if a < b. No logit has key 0 or NO_SORT_KEY.
fn sort_keys_of(v: vec4f) -> vec4u {
  let bits = bitcast<vec4u>(v);
  let keys = select(bits | vec4u(0x80000000u), ~bits, (bits & vec4u(0x80000000u)) != vec4u());
  return clamp(keys, vec4u(1u), vec4u(NO_SORT_KEY - 1u));
}

fn sort_key_of(v: f32) -> u32 { return sort_keys_of(vec4f(v)).x; }

fn logits_of(keys: vec4u) -> vec4f {
  let positive = (keys & vec4u(0x80000000u)) != vec4u();
  return bitcast<vec4f>(select(~keys, keys & vec4u(0x7fffffffu), positive));
}

fn logit_of(key: u32) -> f32 { return logits_of(vec4u(key)).x; }

fn strips() -> u32 { return SLICES * SLICE_LANES; }

// Quads of a row: the keys, then five parts of one quad per four strips.
fn token_quads() -> u32 { return strips() * STRIP_QUADS; }

fn row_quads() -> u32 { return token_quads() + strips() / 4u * N_SUMMARIES; }

// Index in the row of a strip's i-th quad. Neighbouring lanes read neighbouring quads.
fn strip_quad(strip: u32, i: u32) -> u32 {
  let slice = strip / SLICE_LANES;
  return (slice * STRIP_QUADS + i) * SLICE_LANES + strip % SLICE_LANES;
}
