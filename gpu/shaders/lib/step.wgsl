// Uniform buffer of a step: its rows and samples, written by the host before each submit. See
// gpu/step.py.
const MAX_SAMPLES = 64u;
const MAX_ROWS = 512u;
const FROM_GPU = 0xffffffffu; // token of a row: the id that its slot sampled last

struct Row {
  slot: u32,
  position: u32, // position of the token in its sequence
  token: u32,    // id or FROM_GPU
  block: u32,    // KV block of the position
}

struct Sample {
  row: u32,  // index into rows
  slot: u32,
  seed_low: u32,
  seed_high: u32,
  index: u32, // tokens this run has sampled so far: the random counter
  top_k: u32, // 0: off
  temperature: f32, // 0: greedy
  top_p: f32,
  min_p: f32,
  repetition_penalty: f32,
  frequency_penalty: f32,
  presence_penalty: f32,
  n_biases: u32, // tokens whose logits are biased
  n_drafts: u32, // rows up to `row` that are drafts: their tokens count as seen and written
  verifies: u32, // 1: the host decides whether the token is the slot's next
  n_allowed: u32, // tokens that the slot's grammar allows; 0: there is none
  inverse_temperature: f32, // 1 / temperature; 0: not given
  inverse_penalty: f32, // 1 / repetition_penalty; 0: not given
  watermark_bias: f32, // added to the logits of the greenlist after the filters; 0: none
  n_hashed: u32, // tokens that decide whether a token is green, itself one of them; 0: lefthash
}

struct Step {
  n_rows: u32,
  n_samples: u32,
  unused_0: u32,
  unused_1: u32,
  samples: array<Sample, MAX_SAMPLES>,
  rows: array<Row, MAX_ROWS>,
}
