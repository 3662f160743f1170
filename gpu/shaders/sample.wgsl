// Chooses the next token of each sampled row, exactly and over the whole vocabulary, and reports
// how: repetition penalty → temperature → top-k → top-p → min-p → draw.
//
// The filters, the draw and the list of candidates are thresholds on the key of the scaled logit
// (see lib/ranking.wgsl); tokens that tie with a threshold survive with it. The draw picks from the
// survivors in falling order of their logit, ties by id: the first whose cumulative mass exceeds
// u · kept, where u depends on seed and index alone.
//
// logits   [n_samples][VOCAB_STRIDE / 4] vec4  in: raw logits; out: after penalty and temperature
// seen     [n_slots][SEEN_WORDS] bit set: the token is in the slot's context
// chosen   [n_slots]
// results  [n_samples][RESULT_WORDS]  see `write_choice`, `write_candidate`
// use: step
// use: philox
// use: ranking
// use: candidates
override VOCAB_STRIDE: u32;
override SEEN_WORDS: u32;

const HEADER_WORDS = 12u;
const CANDIDATE_WORDS = 4u;
const RESULT_WORDS = HEADER_WORDS + CANDIDATE_WORDS * N_CANDIDATES;
const LEAST_TEMPERATURE = 1e-30; // as good as greedy, and logits stay finite

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read_write> logits: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> seen: array<u32>;
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(4) var<storage, read_write> results: array<u32>;

fn was_seen(slot: u32, id: u32) -> bool {
  return ((seen[slot * SEEN_WORDS + id / 32u] >> (id % 32u)) & 1u) == 1u;
}

fn divisor_of(sample: Sample) -> f32 {
  return select(max(sample.temperature, LEAST_TEMPERATURE), 1.0, sample.temperature == 0.0);
}

fn scaled(raw: f32, id: u32, sample: Sample) -> f32 {
  var v = raw;
  if (was_seen(sample.slot, id)) {
    v = select(v * sample.repetition_penalty, v / sample.repetition_penalty, v > 0.0);
  }
  v /= divisor_of(sample);
  return select(v, 0.0, v == 0.0); // −0 ties with 0
}

// Undoes `scaled`.
fn unscaled(v: f32, id: u32, sample: Sample) -> f32 {
  let raw = v * divisor_of(sample);
  if (!was_seen(sample.slot, id)) { return raw; }
  return select(raw / sample.repetition_penalty, raw * sample.repetition_penalty, raw > 0.0);
}

// Applies penalty and temperature in place and sets `top`; returns log Σ exp of the raw logits.
fn scale_logits(sample: Sample) -> f32 {
  var raw_top = LOWEST;
  for (var chunk = lane; chunk * 4u < VOCAB; chunk += LANES) {
    let four = logits[first + chunk];
    for (var j = 0u; j < 4u; j++) {
      raw_top = max(raw_top, select(LOWEST, four[j], chunk * 4u + j < VOCAB));
    }
  }
  raw_top = max_lanes(raw_top);
  var raw_sum = 0.0;
  var scaled_top = LOWEST;
  for (var chunk = lane; chunk * 4u < VOCAB; chunk += LANES) {
    var four = logits[first + chunk];
    for (var j = 0u; j < 4u; j++) {
      let id = chunk * 4u + j;
      if (id >= VOCAB) { continue; }
      raw_sum += exp(four[j] - raw_top);
      four[j] = scaled(four[j], id, sample);
      scaled_top = max(scaled_top, four[j]);
    }
    logits[first + chunk] = four;
  }
  top = max_lanes(scaled_top);
  return raw_top + log(sum_lanes(vec4f(raw_sum)).x);
}

// Keys a token must reach to survive each filter; 0 where the filter is off.
struct Cuts {
  top_k: u32,
  top_p: u32,
  min_p: u32,
}

fn find_cuts(sample: Sample) -> Cuts {
  var cuts = Cuts(0u, 0u, 0u);
  if (sample.temperature == 0.0) {
    cuts.top_k = key_of(top);
    return cuts;
  }
  if (sample.top_k > 0u && sample.top_k < VOCAB) {
    cuts.top_k = search(0u, false, f32(sample.top_k), false).key;
  }
  if (sample.top_p < 1.0) {
    let wanted = sample.top_p * totals(cuts).masses.y;
    cuts.top_p = search(cuts.top_k, true, wanted, false).key;
  }
  // A logarithm may be rounded up; the most likely token stays all the same.
  if (sample.min_p > 0.0) { cuts.min_p = key_of(top + min(0.0, log(sample.min_p))); }
  return cuts;
}

struct Totals {
  masses: vec4f, // of all tokens, after top-k, after top-p, after min-p
  n_kept: f32,
}

fn totals(cuts: Cuts) -> Totals {
  let after_top_p = max(cuts.top_k, cuts.top_p);
  let floors = vec4u(0u, cuts.top_k, after_top_p, max(after_top_p, cuts.min_p));
  var masses = vec4f();
  var n_kept = 0.0;
  for (var chunk = lane; chunk * 4u < VOCAB; chunk += LANES) {
    let four = logits[first + chunk];
    for (var j = 0u; j < 4u; j++) {
      if (chunk * 4u + j >= VOCAB) { continue; }
      let reached = vec4u(key_of(four[j])) >= floors;
      masses += select(vec4f(), vec4f(mass_of(four[j])), reached);
      n_kept += select(0.0, 1.0, reached.w);
    }
  }
  return Totals(sum_lanes(masses), sum_lanes(vec4f(n_kept)).x);
}

// The id at which the cumulative mass of the tokens with the picked key passes `wanted`.
fn pick_tied(picked: Found, wanted: f32, ties: Standing) -> u32 {
  let share = (wanted - picked.above) / mass_of(logit_of(picked.key));
  let n_before = u32(max(0.0, of_first_lane(share)));
  if (n_before == 0u || ties.n_equal <= 1u) { return ties.first_id; }
  return nth_tied(picked.key, min(n_before, ties.n_equal - 1u));
}

// Words of a candidate: id, probability before, after the filters, which filter cut it.
fn write_candidate(at: u32, i: u32, cuts: Cuts, masses: vec4f, greedy: bool, id: u32) {
  let key = listed_keys[i];
  let mass = mass_of(logit_of(key));
  var cut = 0u;
  if (key < cuts.top_k) { cut = 1u; }
  else if (key < cuts.top_p) { cut = 2u; }
  else if (key < cuts.min_p) { cut = 3u; }
  var after = select(0.0, mass / masses.w, cut == 0u);
  if (greedy) {
    after = select(0.0, 1.0, listed_ids[i] == id);
    cut = 0u;
  }
  results[at] = listed_ids[i];
  results[at + 1u] = bitcast<u32>(mass / masses.x);
  results[at + 2u] = bitcast<u32>(after);
  results[at + 3u] = cut;
}

// Words of a choice: id, log-probability, probability, rank, how many were kept, the draw, the mass
// kept, and cut by top-k, top-p, min-p, how many candidates follow. Greedy: it alone is kept.
fn write_choice(at: u32, id: u32, logprob: f32, mass: f32, rank: u32, t: Totals, draw: f32) {
  results[at] = id;
  results[at + 1u] = bitcast<u32>(logprob);
  results[at + 2u] = bitcast<u32>(mass / t.masses.w);
  results[at + 3u] = rank;
  results[at + 4u] = u32(t.n_kept);
  results[at + 5u] = bitcast<u32>(draw);
  let shares = vec4f(t.masses.w, t.masses.xyz - t.masses.yzw) / t.masses.x;
  for (var i = 0u; i < 4u; i++) { results[at + 6u + i] = bitcast<u32>(shares[i]); }
  results[at + 10u] = min(N_CANDIDATES, VOCAB);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
  if (group.x >= step.n_samples) { return; }
  let sample = step.samples[group.x];
  let greedy = sample.temperature == 0.0;
  lane = local;
  first = group.x * (VOCAB_STRIDE / 4u);

  let raw_log_sum = scale_logits(sample);
  let cuts = find_cuts(sample);
  var kept = totals(cuts);
  var draw = 0.0;
  var picked = Found(cuts.top_k, 0.0);
  if (!greedy) {
    draw = uniform_draw(vec2u(sample.seed_low, sample.seed_high), sample.index);
    let floor = max(cuts.top_k, max(cuts.top_p, cuts.min_p));
    picked = search(floor, true, draw * kept.masses.w, true);
  }
  let ties = standing_of(picked.key);
  let id = min(pick_tied(picked, draw * kept.masses.w, ties), VOCAB - 1u); // also when all is NaN

  let n_candidates = min(N_CANDIDATES, VOCAB);
  list_candidates(n_candidates);
  let at = group.x * RESULT_WORDS;
  for (var i = lane; i < n_candidates; i += LANES) {
    let place = at + HEADER_WORDS + place_of(i, n_candidates) * CANDIDATE_WORDS;
    write_candidate(place, i, cuts, kept.masses, greedy, id);
  }
  if (lane == 0u) {
    let v = logit_of(picked.key);
    let logprob = unscaled(v, id, sample) - raw_log_sum;
    if (greedy) { kept = Totals(vec4f(1.0), 1.0); }
    let mass = select(mass_of(v), 1.0, greedy);
    write_choice(at, id, logprob, mass, ties.n_above, kept, draw);
    seen[sample.slot * SEEN_WORDS + id / 32u] |= 1u << (id % 32u);
    chosen[sample.slot] = id;
  }
}
