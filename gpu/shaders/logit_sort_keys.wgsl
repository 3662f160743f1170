// sort_keys = (logits of the tokens that a grammar allows + biases, after penalties) / temperature,
// as integers that sort like them, and a summary of each strip of the vocabulary.
//
// First half of sampling, over slices of the vocabulary. From the summaries `sample` knows where
// the most likely tokens are and the mass of all tokens without reading them again.
//
// logits     [n_samples][LOGIT_QUADS] vec4  raw
// seen       [n_slots][SEEN_WORDS] bit set: the token is in the slot's context
// allowed    [n_slots][SEEN_WORDS] bit set: the slot's grammar allows the token next
// counts     [n_slots][COUNT_QUADS] vec2, 16 bits a token: how often the slot's run wrote it
// biases     [n_slots][BIASES] vec2  id, number to add as bits of f32; by rising id
// sort_keys  [n_samples][row_quads()] vec4  see lib/sort_keys.wgsl
// use: step
// use: sort_keys
// use: strip_sums
// use: strip_summaries
override VOCAB: u32;
override LOGIT_QUADS: u32;
override SEEN_WORDS: u32;
override COUNT_QUADS: u32;
override BIASES: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> logits: array<vec4f>;
@group(0) @binding(2) var<storage, read> seen: array<u32>;
@group(0) @binding(3) var<storage, read> allowed: array<u32>;
@group(0) @binding(4) var<storage, read> counts: array<vec2u>;
@group(0) @binding(5) var<storage, read> biases: array<vec2u>;
@group(0) @binding(6) var<storage, read_write> sort_keys: array<vec4u>;

// 1 / x: the host's, or the device's own where a host of an earlier plan file left it 0. Greedy: 1.
fn inverse_of(x: f32, host: f32) -> f32 {
  return select(host, 1.0 / select(x, 1.0, x == 0.0), host == 0.0);
}

fn ids_of(quad: u32) -> vec4u { return vec4u(quad * 4u) + vec4u(0u, 1u, 2u, 3u); }

fn biased(four: vec4f, quad: u32, sample: Sample) -> vec4f {
  let first = sample.slot * BIASES;
  var at = first; // of the first bias that is not of an earlier token
  var end = first + sample.n_biases;
  while (at < end) {
    let middle = (at + end) / 2u;
    if (biases[middle].x < quad * 4u) { at = middle + 1u; } else { end = middle; }
  }
  var sum = four;
  for (; at < first + sample.n_biases; at++) {
    let bias = biases[at];
    if (bias.x >= quad * 4u + 4u) { break; }
    sum += select(vec4f(), vec4f(bitcast<f32>(bias.y)), ids_of(quad) == vec4u(bias.x));
  }
  return sum;
}

fn penalised(four: vec4f, quad: u32, sample: Sample) -> vec4f {
  var was_seen = bits_of(seen[sample.slot * SEEN_WORDS + quad / 8u], quad);
  for (var i = 0u; i < sample.n_drafts; i++) {
    was_seen |= vec4u(step.rows[sample.row - i].token) == ids_of(quad);
  }
  let is_above = four > vec4f();
  let penalty = sample.repetition_penalty;
  let inverse = inverse_of(penalty, sample.inverse_penalty);
  return select(four, four * select(vec4f(penalty), vec4f(inverse), is_above), was_seen);
}

fn penalised_by_count(four: vec4f, quad: u32, sample: Sample) -> vec4f {
  let two = counts[sample.slot * COUNT_QUADS + quad];
  var count = vec4u(two.x & 0xffffu, two.x >> 16u, two.y & 0xffffu, two.y >> 16u);
  for (var i = 0u; i < sample.n_drafts; i++) {
    count += vec4u(vec4u(step.rows[sample.row - i].token) == ids_of(quad));
  }
  let presence = select(vec4f(), vec4f(sample.presence_penalty), count > vec4u());
  return four - sample.frequency_penalty * vec4f(min(count, vec4u(0xffffu))) - presence;
}

// Writes the keys of a strip of a sample's row; returns its summaries.
fn write_keys(sample: Sample, index: u32, strip: u32) -> Summary {
  let row = index * row_quads();
  let factor = inverse_of(sample.temperature, sample.inverse_temperature);
  let masked = sample.n_allowed > 0u;
  let counts_act = sample.frequency_penalty != 0.0 || sample.presence_penalty != 0.0;
  let unscaled = sample.n_biases == 0u && sample.repetition_penalty == 1.0 && !counts_act
    && factor == 1.0 && !masked;
  var greatest = vec4u();
  var raw = Sum(LOWEST, 0.0);
  var raw_allowed = 0.0; // the part of raw.mass that allowed tokens have
  var scaled = Sum(LOWEST, 0.0);
  for (var i = 0u; i < STRIP_QUADS; i++) {
    let quad = strip_quad(strip, i);
    var is_token = ids_of(quad) < vec4u(VOCAB);
    var found = vec4u();
    if (quad * 4u < VOCAB) {
      var four = select(vec4f(LOWEST), logits[index * LOGIT_QUADS + quad], is_token);
      let raw_before = raw.top;
      raw = add(raw, four);
      if (masked) {
        is_token &= bits_of(allowed[sample.slot * SEEN_WORDS + quad / 8u], quad);
        raw_allowed = add_part(raw_allowed, raw_before, raw, four, is_token);
      }
      if (sample.n_biases > 0u) { four = biased(four, quad, sample); }
      if (sample.repetition_penalty != 1.0) { four = penalised(four, quad, sample); }
      if (counts_act) { four = penalised_by_count(four, quad, sample); }
      four *= factor;
      four = select(four, vec4f(), four == vec4f()); // −0 and 0 get the same key
      if (!unscaled) { scaled = add(scaled, select(vec4f(LOWEST), four, is_token)); }
      found = select(vec4u(), sort_keys_of(four), is_token);
    }
    greatest = max(greatest, found);
    sort_keys[row + quad] = found;
  }
  if (unscaled) { scaled = raw; }
  let most = max(max(greatest.x, greatest.y), max(greatest.z, greatest.w));
  return Summary(vec4u(most, bitcast<vec3u>(vec3f(scaled.mass, raw.top, raw.mass))),
                 bitcast<u32>(raw_allowed));
}

@compute @workgroup_size(SLICE_LANES / LANE_STRIPS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  if (group.y >= step.n_samples) { return; }
  let sample = step.samples[group.y];
  var found = array<Summary, LANE_STRIPS>();
  for (var s = 0u; s < LANE_STRIPS; s++) {
    found[s] = write_keys(sample, group.y, group.x * SLICE_LANES + lane * LANE_STRIPS + s);
  }
  let first = group.y * row_quads() + token_quads() + group.x * (SLICE_LANES / 4u);
  write_summaries(first, lane, found, sample.n_allowed > 0u);
}
