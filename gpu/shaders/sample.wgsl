// results = the next token of each sampled row and how it was chosen, exact over the whole
// vocabulary: top-k → top-p → min-p → draw.
//
// Second half of sampling, from the keys of logit_sort_keys. The filters are thresholds on the key
// of the scaled logit; tokens that tie with a threshold survive. The draw is the first survivor, by
// falling logit and then rising id, whose cumulative mass exceeds u · kept mass; u depends on seed
// and index alone. Few tokens hold nearly all mass: these are sorted once, and nearly every
// threshold is among them. Others are found by walks over the row (lib/sampler_rank.wgsl).
//
// A row with a watermark is sampled twice: first by its filters, then, when `watermark_keys` has
// added the bias to the keys of the survivors, once more without filters. The second time replaces
// what the draw decides.
//
// logits     [n_samples][LOGIT_STRIDE] raw
// sort_keys  [n_samples][row_quads()] vec4  see lib/sort_keys.wgsl
// seen       [n_slots][SEEN_WORDS] bit set: the token is in the slot's context
// counts     [n_slots][COUNT_WORDS] 16 bits a token: how often the slot's run wrote it
// chosen     [n_slots]
// results    [n_samples][RESULT_WORDS]  see `write_choice`, `write_candidate`
// ranked     [n_samples][N_RANKED] ids of the most likely survivors, of samples whose greenlist
//            depends on them; NO_ID past the last (not bound without RANKED)
// use: step
// use: philox
// use: quotient
// use: sampler_stages
override LOGIT_STRIDE: u32;
override SEEN_WORDS: u32;
override COUNT_WORDS: u32;
override WATERMARKED: bool = false; // the second time
override RANKED: bool = false;

const FIXED_WORDS = 10u; // of a header; it has one more for each filter
const HEADER_WORDS = FIXED_WORDS + N_FILTERS;
const CANDIDATE_WORDS = 4u;
const RESULT_WORDS = HEADER_WORDS + CANDIDATE_WORDS * N_CANDIDATES;
const GREEN_WORD = HEADER_WORDS - 1u; // before the second time, the key that survivors reach

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> sort_keys: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> seen: array<u32>;
@group(0) @binding(4) var<storage, read_write> counts: array<u32>;
@group(0) @binding(5) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(6) var<storage, read_write> results: array<u32>;
@group(0) @binding(7) var<storage, read_write> ranked: array<u32>; // optional

var<workgroup> shared_n_kept: u32;

// Words of a candidate: id, probability before and after the filters, the filter that cut it.
fn write_candidate(at: u32, i: u32, choice: Choice, total: f32, greedy: bool) {
  let key = entries[i].x;
  let mass = mass_of(key);
  let cut = filter_that_cuts(key, choice);
  var after = select(0.0, quotient(mass, choice.masses[N_FILTERS]), cut == 0u);
  if (greedy) { after = select(0.0, 1.0, i == 0u); }
  results[at] = entries[i].y;
  results[at + 1u] = bitcast<u32>(quotient(mass, total));
  results[at + 2u] = bitcast<u32>(after);
  results[at + 3u] = cut;
}

// Replaces the probability after the bias of a watermark of a candidate that was not cut.
fn mark_candidate(at: u32, row: u32, choice: Choice, greedy: bool) {
  if (results[at + 3u] != 0u) { return; }
  let id = results[at];
  var four = sort_keys[row + id / 4u];
  var after = quotient(mass_of(four[id % 4u]), choice.masses[N_FILTERS]);
  if (greedy) { after = select(0.0, 1.0, id == choice.rank.id); }
  results[at + 2u] = bitcast<u32>(after);
}

// Words of a draw: id, log-probability, probability, rank.
fn write_draw(at: u32, id: u32, logprob: f32, choice: Choice) {
  var masses = choice.masses;
  results[at] = id;
  results[at + 1u] = bitcast<u32>(logprob);
  results[at + 2u] = bitcast<u32>(quotient(choice.mass, masses[N_FILTERS]));
  results[at + 3u] = choice.rank.n_above;
}

// Words of the filters: number of survivors, draw, mass of the survivors, mass that each one cut.
fn write_filters(at: u32, choice: Choice) {
  var masses = choice.masses;
  results[at + 4u] = choice.n_kept;
  results[at + 5u] = bitcast<u32>(choice.draw);
  results[at + 6u] = bitcast<u32>(quotient(masses[N_FILTERS], masses[0]));
  for (var i = 0u; i < N_FILTERS; i++) {
    results[at + 7u + i] = bitcast<u32>(quotient(masses[i] - masses[i + 1u], masses[0]));
  }
}

// Probability of the green tokens before the bias. `watermark_keys` summed up the masses of the
// others: with a large bias, what they add to all masses is lost in rounding.
fn green_share(summaries: KeySlice, mass: f32, bias: f32) -> f32 {
  var sum = 0.0;
  for (var i = lane; i < summaries.n; i += LANES) {
    let at = summaries.first + i;
    let greatest = sort_keys[at];
    let red = bitcast<vec4f>(sort_keys[at + 4u * summaries.n]);
    sum += dot(select(masses_of(greatest), vec4f(), greatest == vec4u()), red);
  }
  let red = min(sum_lanes(vec4f(sum, 0.0, 0.0, 0.0)).x, mass);
  let green = (mass - red) * exponentials(vec4f(-bias)).x;
  return quotient(green, green + red);
}

// Key that the survivors of all filters reach.
fn floor_of(choice: Choice) -> u32 {
  var cuts = choice.cuts;
  var floor = 1u;
  for (var i = 0u; i < N_FILTERS; i++) { floor = max(floor, cuts[i]); }
  return floor;
}

// The token is part of its slot's text from now on.
fn remember(slot: u32, id: u32) {
  seen[slot * SEEN_WORDS + id / 32u] |= 1u << (id % 32u);
  let at = slot * COUNT_WORDS + id / 2u;
  let shift = id % 2u * 16u;
  if (((counts[at] >> shift) & 0xffffu) < 0xffffu) { counts[at] += 1u << shift; }
  chosen[slot] = id;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
  if (group.x >= step.n_samples) { return; }
  var sample = step.samples[group.x];
  let marks = sample.watermark_bias != 0.0;
  if (WATERMARKED && !marks) { return; }
  let greedy = sample.temperature == 0.0;
  lane = local;
  let row = tokens_of(group.x);
  let summaries = strips_of(group.x);
  let at = group.x * RESULT_WORDS;

  let ends = find_extremes(group.x);
  top = logit_of(ends.greatest);
  let raw_top = logit_of(ends.raw);
  let masked = sample.n_allowed > 0u;
  var n_tokens = select(VOCAB, sample.n_allowed, masked);
  if (WATERMARKED) {
    if (lane == 0u) { shared_n_kept = results[at + 4u]; }
    n_tokens = select(workgroupUniformLoad(&shared_n_kept), n_tokens, greedy);
    sample.top_k = 0u;
    sample.top_p = 1.0;
    sample.min_p = 0.0;
    sample.n_hashed = 0u;
  }
  let totals = total_masses(summaries, raw_top, masked && !WATERMARKED);
  let n_listed = min(most_listed(sample), n_tokens);
  let choice = choose(ScaledRow(row, summaries, ends, n_tokens, n_listed, totals.x), sample);

  if (RANKED && sample.n_hashed > 0u) {
    for (var i = lane; i < N_RANKED; i += LANES) {
      let survives = i < n_listed && entries[i].x >= floor_of(choice);
      ranked[group.x * N_RANKED + i] = select(NO_ID, entries[i].y, survives);
    }
  }
  let n_candidates = min(N_CANDIDATES, select(VOCAB, sample.n_allowed, masked));
  for (var i = lane; i < n_candidates; i += LANES) {
    let candidate = at + HEADER_WORDS + i * CANDIDATE_WORDS;
    if (WATERMARKED) { mark_candidate(candidate, group.x * row_quads(), choice, greedy); }
    else { write_candidate(candidate, i, choice, totals.x, greedy); }
  }
  var green = 0.0;
  if (WATERMARKED) { green = green_share(summaries, totals.x, sample.watermark_bias); }
  if (lane == 0u) {
    let id = min(choice.rank.id, VOCAB - 1u); // in range even if all logits are NaN
    let logprob = logits[group.x * LOGIT_STRIDE + id] - raw_top - log(totals.y);
    write_draw(at, id, logprob, choice);
    results[at + GREEN_WORD] = bitcast<u32>(green);
    if (!WATERMARKED) {
      write_filters(at, choice);
      results[at + N_FILTERS + 7u] = n_candidates;
      results[at + N_FILTERS + 8u] = bitcast<u32>(select(1.0, totals.z / totals.y, masked));
      if (marks) { results[at + GREEN_WORD] = floor_of(choice); }
    }
    if (sample.verifies == 0u && marks == WATERMARKED) { remember(sample.slot, id); }
  }
}
