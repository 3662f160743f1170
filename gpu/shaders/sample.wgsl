// Second half of sampling: chooses the next token of each sampled row, exactly and over the whole
// vocabulary, and reports how: top-k → top-p → min-p → draw, of what `sample_keys` left.
//
// The filters are thresholds on the key of the scaled logit; tokens that tie with a threshold
// survive with it. The draw picks from the survivors in falling order of their logit, ties by id:
// the first whose cumulative mass exceeds u · kept, where u depends on seed and index alone. Few
// tokens hold nearly all mass, so these are sorted once, and nearly every cut lies among them; any
// other is found by walking over the row (see lib/ranking.wgsl).
//
// logits   [n_samples][LOGIT_STRIDE] raw
// keys     [n_samples][row_quads()] vec4  see lib/keys.wgsl
// seen     [n_slots][SEEN_WORDS] bit set: the token is in the slot's context
// chosen   [n_slots]
// results  [n_samples][RESULT_WORDS]  see `write_choice`, `write_candidate`
// use: step
// use: philox
// use: survivors
override LOGIT_STRIDE: u32;
override SEEN_WORDS: u32;

const HEADER_WORDS = 12u;
const CANDIDATE_WORDS = 4u;
const RESULT_WORDS = HEADER_WORDS + CANDIDATE_WORDS * N_CANDIDATES;
const TOP_K = 0u;
const TOP_P = 1u;
const DRAW = 2u;
const WIDE = 64u; // tokens to sort where no top-k says how many may survive

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> seen: array<u32>;
@group(0) @binding(4) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(5) var<storage, read_write> results: array<u32>;

// What became of a row. Greedy: the token alone is kept, of mass 1.
struct Choice {
  place: Place,
  mass: f32,     // of the token
  n_kept: u32,
  cuts: vec3u,   // keys a token must reach to survive top-k, top-p, min-p; 0 where a filter is off
  masses: vec4f, // of all tokens, after top-k, after top-p, after min-p
  draw: f32,
}

// How many tokens to sort: as many as will probably be asked about.
fn need_of(sample: Sample, greedy: bool) -> u32 {
  var need = WIDE;
  if (sample.top_k > 0u) { need = clamp(sample.top_k, N_CANDIDATES, CAPACITY / 2u); }
  if (greedy) { need = N_CANDIDATES; }
  return min(need, max(N_CANDIDATES, VOCAB / (8u * STRIP_QUADS))); // half of the strips
}

fn query_of(stage: u32, sample: Sample, mass: f32, draw: f32) -> Query {
  if (stage == TOP_K) { return Query(false, false, f32(sample.top_k)); }
  if (stage == TOP_P) { return Query(true, false, sample.top_p * mass); }
  return Query(true, true, draw * mass);
}

fn draw_token(row: Quads, first: Window, greatest: u32, sample: Sample, total: f32) -> Choice {
  let draw = uniform_draw(vec2u(sample.seed_low, sample.seed_high), sample.index);
  var kept = Kept(1u, VOCAB, total);
  var cuts = vec3u();
  var masses = vec4f(total);
  var place: Place;
  for (var stage = TOP_K; stage <= DRAW; stage++) { // a loop, so that `locate` is compiled once
    if (stage == TOP_K && (sample.top_k == 0u || sample.top_k >= VOCAB)) { continue; }
    if (stage == TOP_P && sample.top_p >= 1.0) { continue; }
    if (stage == DRAW && sample.min_p > 0.0) {
      // A logarithm may be rounded up; the most likely token stays all the same.
      cuts.z = key_of(logit_of(greatest) + min(0.0, log(sample.min_p)));
      if (cuts.z > kept.floor) { kept = reaching(row, first, cuts.z); }
      masses.w = kept.mass;
    }
    place = locate(row, first, greatest, kept, query_of(stage, sample, kept.mass, draw));
    if (stage == DRAW) { continue; }
    kept = Kept(place.key, place.n_through, place.mass_through);
    cuts[stage] = place.key;
    masses = vec4f(total, select(masses.y, kept.mass, stage == TOP_K), vec2f(kept.mass));
  }
  return Choice(place, mass_of(place.key), kept.n, cuts, masses, draw);
}

// Words of a candidate: id, probability before, after the filters, which filter cut it.
fn write_candidate(at: u32, i: u32, choice: Choice, total: f32, greedy: bool) {
  let key = entries[i].x;
  let mass = mass_of(key);
  var cut = 0u;
  if (key < choice.cuts.x) { cut = 1u; }
  else if (key < choice.cuts.y) { cut = 2u; }
  else if (key < choice.cuts.z) { cut = 3u; }
  var after = select(0.0, mass / choice.masses.w, cut == 0u);
  if (greedy) { after = select(0.0, 1.0, i == 0u); }
  results[at] = entries[i].y;
  results[at + 1u] = bitcast<u32>(mass / total);
  results[at + 2u] = bitcast<u32>(after);
  results[at + 3u] = cut;
}

// Words of a choice: id, log-probability, probability, rank, how many were kept, the draw, the mass
// kept, and cut by top-k, top-p, min-p, how many candidates follow.
fn write_choice(at: u32, id: u32, logprob: f32, choice: Choice) {
  let masses = choice.masses;
  results[at] = id;
  results[at + 1u] = bitcast<u32>(logprob);
  results[at + 2u] = bitcast<u32>(choice.mass / masses.w);
  results[at + 3u] = choice.place.n_above;
  results[at + 4u] = choice.n_kept;
  results[at + 5u] = bitcast<u32>(choice.draw);
  let shares = vec4f(masses.w, masses.xyz - masses.yzw) / masses.x;
  for (var i = 0u; i < 4u; i++) { results[at + 6u + i] = bitcast<u32>(shares[i]); }
  results[at + 10u] = min(N_CANDIDATES, VOCAB);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
  if (group.x >= step.n_samples) { return; }
  let sample = step.samples[group.x];
  let greedy = sample.temperature == 0.0;
  lane = local;
  let row = Quads(group.x * row_quads(), token_quads(), true);
  let summaries = Quads(row.first + row.n, strips() / 4u, false);

  let ends = find_extremes(summaries);
  top = logit_of(ends.greatest);
  let raw_top = logit_of(ends.raw);
  let totals = total_masses(summaries, raw_top);
  let first = first_window(row, summaries, ends, need_of(sample, greedy));
  let best = Place(entries[0].x, entries[0].y, 0u, 1u, 1.0);
  var choice = Choice(best, 1.0, 1u, vec3u(), vec4f(1.0), 0.0);
  if (!greedy) { choice = draw_token(row, first, ends.greatest, sample, totals.x); }

  let n_candidates = min(N_CANDIDATES, VOCAB);
  let at = group.x * RESULT_WORDS;
  for (var i = lane; i < n_candidates; i += LANES) {
    write_candidate(at + HEADER_WORDS + i * CANDIDATE_WORDS, i, choice, totals.x, greedy);
  }
  if (lane == 0u) {
    let id = min(choice.place.id, VOCAB - 1u); // also when all is NaN
    let logprob = logits[group.x * LOGIT_STRIDE + id] - raw_top - log(totals.y);
    write_choice(at, id, logprob, choice);
    seen[sample.slot * SEEN_WORDS + id / 32u] |= 1u << (id % 32u);
    chosen[sample.slot] = id;
  }
}
