// Chooses the next token of each sampled row, exactly and over the whole vocabulary, and reports
// how: repetition penalty → temperature → top-k → top-p → min-p → draw.
//
// Nothing is sorted. Scaled logits map to integer keys of the same order; each filter, the draw
// and the list of candidates are thresholds on the key: the largest t whose tokens ≥ t number at
// least k, or have at least some mass. `search` finds such a t four bits at a time, from a
// histogram of the keys that share the bits found so far. Every sum is made in one fixed order
// (by lane, then over lanes), so a seed gives the same token whatever else runs.
//
// Tokens that tie with a threshold survive with it. The draw picks from the survivors in falling
// order of their logit, ties by id: the first whose cumulative mass exceeds u · kept.
//
// logits   [n_samples][VOCAB_STRIDE]  in: raw logits; out: after penalty and temperature
// seen     [n_slots][SEEN_WORDS] bit set: the token is in the slot's context
// chosen   [n_slots]
// results  [n_samples][RESULT_WORDS]  see write_result, write_candidate
// use: step
// use: philox
override VOCAB: u32;
override VOCAB_STRIDE: u32;
override SEEN_WORDS: u32;
override LANES: u32 = 64u;

const N_CANDIDATES = 20u;
const HEADER_WORDS = 12u;
const CANDIDATE_WORDS = 4u;
const RESULT_WORDS = HEADER_WORDS + CANDIDATE_WORDS * N_CANDIDATES;
const LOWEST = -3.4e38;
const BINS = 16u; // four bits of the key at a time
const NO_ID = 0xffffffffu;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read_write> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> seen: array<u32>;
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(4) var<storage, read_write> results: array<u32>;

var<workgroup> bins: array<f32, LANES * BINS>;
var<workgroup> bin_totals: array<f32, BINS>;
var<workgroup> lane_values: array<f32, LANES>;
var<workgroup> shared_sum: f32;
var<workgroup> lowest_id: atomic<u32>;
var<workgroup> shared_id: u32;
var<workgroup> n_listed: atomic<u32>;
var<workgroup> listed_ids: array<u32, N_CANDIDATES>;
var<workgroup> listed_keys: array<u32, N_CANDIDATES>;

// The scaled logits of this workgroup's sample, set up by `scale_logits`.
var<private> first: u32;   // its place in `logits`
var<private> top: f32;     // the largest of them
var<private> lane: u32;

// Order-preserving: a < b exactly when key_of(a) < key_of(b).
fn key_of(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

fn logit_of(key: u32) -> f32 {
  return bitcast<f32>(select(~key, key & 0x7fffffffu, (key & 0x80000000u) != 0u));
}

// Unnormalised probability: 1 for the most likely token.
fn mass_of(v: f32) -> f32 { return exp(v - top); }

// Σ of every lane's value, the same bits in every lane.
fn sum_lanes(value: f32) -> f32 {
  lane_values[lane] = value;
  workgroupBarrier();
  if (lane == 0u) {
    var total = 0.0;
    for (var l = 0u; l < LANES; l++) { total += lane_values[l]; }
    shared_sum = total;
  }
  return workgroupUniformLoad(&shared_sum);
}

fn max_lanes(value: f32) -> f32 {
  lane_values[lane] = value;
  workgroupBarrier();
  if (lane == 0u) {
    var greatest = LOWEST;
    for (var l = 0u; l < LANES; l++) { greatest = max(greatest, lane_values[l]); }
    shared_sum = greatest;
  }
  return workgroupUniformLoad(&shared_sum);
}

// What a search counts: tokens, or their mass.
fn value_of(v: f32, by_mass: bool) -> f32 { return select(1.0, mass_of(v), by_mass); }

// Σ value over the tokens with key >= floor.
fn total_from(floor: u32, by_mass: bool) -> f32 {
  var total = 0.0;
  for (var id = lane; id < VOCAB; id += LANES) {
    let v = logits[first + id];
    if (key_of(v) >= floor) { total += value_of(v, by_mass); }
  }
  return sum_lanes(total);
}

struct Found {
  key: u32,   // the threshold
  above: f32, // total of the tokens with a larger key
}

// The largest key t >= floor with total(keys >= t) >= wanted (> wanted when `beyond`). When
// rounding leaves the whole total short of `wanted`, the smallest key there is.
fn search(floor: u32, by_mass: bool, wanted: f32, beyond: bool) -> Found {
  var key = 0u;
  var above = 0.0;
  for (var shift = 28i; shift >= 0i; shift -= 4i) {
    for (var b = 0u; b < BINS; b++) { bins[lane * BINS + b] = 0.0; }
    for (var id = lane; id < VOCAB; id += LANES) {
      let v = logits[first + id];
      let k = key_of(v);
      // Shifting by 32 is undefined, so the first round shifts twice.
      let matches = ((k ^ key) >> u32(shift) >> 4u) == 0u;
      if (k >= floor && matches) {
        bins[lane * BINS + ((k >> u32(shift)) & 15u)] += value_of(v, by_mass);
      }
    }
    workgroupBarrier();
    for (var b = lane; b < BINS; b += LANES) {
      var total = 0.0;
      for (var l = 0u; l < LANES; l++) { total += bins[l * BINS + b]; }
      bin_totals[b] = total;
    }
    workgroupBarrier();
    var found = 0u;
    var found_above = above;
    var reached = above;
    for (var i = 0u; i < BINS; i++) {
      let b = BINS - 1u - i;
      let total = bin_totals[b];
      if (total == 0.0) { continue; }
      found = b;
      found_above = reached;
      reached += total;
      if (reached > wanted || (reached == wanted && !beyond)) { break; }
    }
    key |= found << u32(shift);
    above = found_above;
    workgroupBarrier();
  }
  return Found(key, above);
}

// The lowest id >= from with exactly this key; NO_ID when there is none.
fn next_with_key(key: u32, from_id: u32) -> u32 {
  if (lane == 0u) { atomicStore(&lowest_id, NO_ID); }
  workgroupBarrier();
  for (var id = lane; id < VOCAB; id += LANES) {
    if (id >= from_id && key_of(logits[first + id]) == key) {
      atomicMin(&lowest_id, id);
      break;
    }
  }
  workgroupBarrier();
  if (lane == 0u) { shared_id = atomicLoad(&lowest_id); }
  return workgroupUniformLoad(&shared_id);
}

// Applies penalty and temperature in place; returns log Σ exp of the raw logits.
fn scale_logits(sample: Sample) -> f32 {
  var raw_top = LOWEST;
  for (var id = lane; id < VOCAB; id += LANES) { raw_top = max(raw_top, logits[first + id]); }
  raw_top = max_lanes(raw_top);
  var raw_sum = 0.0;
  var scaled_top = LOWEST;
  let divisor = select(1.0, sample.temperature, sample.temperature > 0.0);
  for (var id = lane; id < VOCAB; id += LANES) {
    var v = logits[first + id];
    raw_sum += exp(v - raw_top);
    let word = seen[sample.slot * SEEN_WORDS + id / 32u];
    if (((word >> (id % 32u)) & 1u) == 1u) {
      v = select(v * sample.repetition_penalty, v / sample.repetition_penalty, v > 0.0);
    }
    v = v / divisor;
    logits[first + id] = v;
    scaled_top = max(scaled_top, v);
  }
  raw_sum = sum_lanes(raw_sum);
  top = max_lanes(scaled_top);
  return raw_top + log(raw_sum);
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
    let wanted = sample.top_p * total_from(cuts.top_k, true);
    cuts.top_p = search(cuts.top_k, true, wanted, false).key;
  }
  if (sample.min_p > 0.0) { cuts.min_p = key_of(top + log(sample.min_p)); }
  return cuts;
}

// Undoes temperature and penalty.
fn raw_logit(v: f32, sample: Sample, was_seen: bool) -> f32 {
  var raw = v * select(1.0, sample.temperature, sample.temperature > 0.0);
  if (was_seen) {
    raw = select(raw / sample.repetition_penalty, raw * sample.repetition_penalty, raw > 0.0);
  }
  return raw;
}

fn list(id: u32, key: u32) {
  let at = atomicAdd(&n_listed, 1u);
  listed_ids[at] = id;
  listed_keys[at] = key;
}

// Lists the most likely tokens, in no order yet; ties at the end by id.
fn list_candidates(n: u32) {
  let last = search(0u, false, f32(n), false);
  if (lane == 0u) { atomicStore(&n_listed, 0u); }
  workgroupBarrier();
  for (var id = lane; id < VOCAB; id += LANES) {
    let key = key_of(logits[first + id]);
    if (key > last.key) { list(id, key); }
  }
  var from_id = 0u;
  for (var i = u32(last.above); i < n; i++) {
    let id = next_with_key(last.key, from_id);
    if (lane == 0u) { list(id, last.key); }
    from_id = id + 1u;
  }
  workgroupBarrier();
}

// Words of a candidate: id, probability before, after the filters, which filter cut it.
fn write_candidate(at: u32, i: u32, cuts: Cuts, all: f32, kept: f32, greedy_id: u32) {
  let key = listed_keys[i];
  let mass = mass_of(logit_of(key));
  var cut = 0u;
  if (key < cuts.top_k) { cut = 1u; }
  else if (key < cuts.top_p) { cut = 2u; }
  else if (key < cuts.min_p) { cut = 3u; }
  var after = select(0.0, mass / kept, cut == 0u);
  if (greedy_id != NO_ID) {
    after = select(0.0, 1.0, listed_ids[i] == greedy_id);
    cut = 0u;
  }
  results[at] = listed_ids[i];
  results[at + 1u] = bitcast<u32>(mass / all);
  results[at + 2u] = bitcast<u32>(after);
  results[at + 3u] = cut;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
  if (group.x >= step.n_samples) { return; }
  let sample = step.samples[group.x];
  let greedy = sample.temperature == 0.0;
  lane = local;
  first = group.x * VOCAB_STRIDE;

  let raw_log_sum = scale_logits(sample);
  let cuts = find_cuts(sample);
  let floor = max(cuts.top_k, max(cuts.top_p, cuts.min_p));
  let all = total_from(0u, true);
  let after_top_k = total_from(cuts.top_k, true);
  let after_top_p = total_from(max(cuts.top_k, cuts.top_p), true);
  let kept = total_from(floor, true);
  let n_kept = total_from(floor, false);

  var draw = 0.0;
  var picked = Found(floor, 0.0);
  if (!greedy) {
    draw = uniform_draw(vec2u(sample.seed_low, sample.seed_high), sample.index);
    picked = search(floor, true, draw * kept, true);
  }
  // Among tokens with the picked key, the one at which the cumulative mass passes the draw.
  let picked_mass = mass_of(logit_of(picked.key));
  let n_before = select(u32(max(0.0, (draw * kept - picked.above) / picked_mass)), 0u, greedy);
  var id = next_with_key(picked.key, 0u);
  for (var i = 0u; i < n_before; i++) {
    let next = next_with_key(picked.key, id + 1u);
    if (next == NO_ID) { break; }
    id = next;
  }
  let rank = select(total_from(picked.key + 1u, false), 0.0, greedy);

  let n_candidates = min(N_CANDIDATES, VOCAB);
  list_candidates(n_candidates);
  let result_at = group.x * RESULT_WORDS;
  for (var i = lane; i < n_candidates; i += LANES) {
    var place = 0u;
    for (var j = 0u; j < n_candidates; j++) {
      let ahead = listed_keys[j] > listed_keys[i]
        || (listed_keys[j] == listed_keys[i] && listed_ids[j] < listed_ids[i]);
      place += select(0u, 1u, ahead);
    }
    write_candidate(result_at + HEADER_WORDS + place * CANDIDATE_WORDS, i, cuts, all, kept,
                    select(NO_ID, id, greedy));
  }

  if (lane == 0u) {
    let word = sample.slot * SEEN_WORDS + id / 32u;
    let was_seen = ((seen[word] >> (id % 32u)) & 1u) == 1u;
    let raw = raw_logit(logit_of(picked.key), sample, was_seen);
    seen[word] |= 1u << (id % 32u);
    chosen[sample.slot] = id;
    results[result_at] = id;
    results[result_at + 1u] = bitcast<u32>(raw - raw_log_sum);
    results[result_at + 2u] = bitcast<u32>(select(picked_mass / kept, 1.0, greedy));
    results[result_at + 3u] = u32(rank);
    results[result_at + 4u] = select(u32(n_kept), 1u, greedy);
    results[result_at + 5u] = bitcast<u32>(draw);
    results[result_at + 6u] = bitcast<u32>(select(kept / all, 1.0, greedy));
    results[result_at + 7u] = bitcast<u32>(select((all - after_top_k) / all, 0.0, greedy));
    results[result_at + 8u] = bitcast<u32>(select((after_top_k - after_top_p) / all, 0.0, greedy));
    results[result_at + 9u] = bitcast<u32>(select((after_top_p - kept) / all, 0.0, greedy));
    results[result_at + 10u] = n_candidates;
  }
}
