// Top-k, top-p, min-p (`top_k`, `top_p`, `min_p`) and the draw as one threshold search over
// descending logits.
//
// Each stage looks for the rank at which a count (top-k) or a mass (top-p, the draw) is reached. It
// narrows a range of keys until its tokens fit into a buffer, sorts these, and finds the rank among
// them. The stages share one loop
// because drivers inline every call: with walks, collections and sorts of their own they took three
// times as long to compile.
// use: sampler_totals
// use: sampler_buffer
// use: sampler_ties
// use: ranked
const STRIPS = 0u; // first buffer: the most likely tokens, from the strips that can hold them
const LISTED = 1u; // first buffer from the whole row, if the strips gave too few tokens or too many
const TOP_K = 2u;
const TOP_P = 3u;
const MIN_P = 4u;
const DRAW = 5u;
const N_FILTERS = DRAW - TOP_K;

const N_CANDIDATES = 20u; // candidates that are reported
const WIDE = 64u; // tokens to sort if there is no top-k

// A row of keys, its summaries, and the totals from them.
struct ScaledRow {
  tokens: KeySlice,
  summaries: KeySlice,
  ends: Extremes,
  n_tokens: u32, // those that are allowed
  n_listed: u32, // the most likely ones, which are sorted whatever the settings
  mass: f32, // of all of these
}

// Tokens that survived so far: keys that reach `floor`.
struct Survivors {
  floor: u32,
  n: u32,
  mass: f32,
}

// Search of one stage. An empty range means that the first buffer holds the answer.
struct Search {
  quads: KeySlice, // keys to walk over
  range: KeyRange,   // holds the answer
  threshold: Threshold,
  enough: u32,  // largest range that need not be narrowed
  n_walks: u32, // fewest walks
}

// Result of a collection.
struct Collected {
  n: u32,       // entries to sort; 0 also if the strips gave too few or too many
  n_whole: u32, // entries that reach `low`; after sorting they come first
  low: u32,
}

// Result for a row. Greedy: only the chosen token survives, with mass 1.
struct Choice {
  rank: TokenRank,
  mass: f32,     // of the token
  n_kept: u32,
  cuts: array<u32, N_FILTERS>, // key that a token must reach to survive each filter; 0: it is off
  masses: array<f32, N_FILTERS + 1>, // of all tokens, and of the survivors of each filter
  draw: f32,
}

// Most tokens that are listed.
fn most_listed(sample: Sample) -> u32 {
  return select(N_CANDIDATES, N_RANKED, sample.n_hashed > 0u);
}

fn choose(row: ScaledRow, sample: Sample) -> Choice {
  let greedy = sample.temperature == 0.0;
  let draw = uniform_draw(vec2u(sample.seed_low, sample.seed_high), sample.index);
  let cut = min_p_cut(row.ends.greatest, sample);
  var first = SamplerBuffer(0u, 0u, 0u, 1u, 0.0);
  var kept = Survivors(1u, row.n_tokens, row.mass);
  var rank = TokenRank(0u, NO_ID, 0u, 0u, 0.0);
  var cuts = array<u32, N_FILTERS>();
  var masses = array<f32, N_FILTERS + 1>();
  for (var i = 0u; i <= N_FILTERS; i++) { masses[i] = row.mass; }
  for (var stage = STRIPS; stage <= select(DRAW, LISTED, greedy); stage++) {
    if (is_off(stage, sample, row, first, kept, cut)) { continue; }
    if (stage == MIN_P) { kept.floor = cut; }
    let search = search_of(stage, row, sample, first, kept, draw);
    let range = narrow(search.quads, search.range, search.threshold, search.enough,
                      search.n_walks);
    let id = tied_id(stage, row, search, range);
    let found = collect_found(stage, row, search, range, id);
    let buffer = buffer_of(stage, found, range, first);
    if (stage <= LISTED) { first = buffer; continue; }

    if (lane == 0u) {
      let floor = select(kept.floor, range.low, found.n > 0u);
      let is_counted = range.n > search.enough || search.n_walks > 0u;
      if (is_counted) { shared_rank = counted_rank(stage, range, id); }
      else { shared_rank = find(buffer, search.threshold, floor); }
    }
    rank = workgroupUniformLoad(&shared_rank);
    if (stage == DRAW) { break; }
    kept = Survivors(select(rank.key, cut, stage == MIN_P), rank.n_through, rank.mass_through);
    let filtered = stage - TOP_K;
    cuts[filtered] = kept.floor;
    for (var i = filtered + 1u; i <= N_FILTERS; i++) { masses[i] = kept.mass; }
  }
  if (greedy) {
    let best = TokenRank(entries[0].x, entries[0].y, 0u, 1u, 1.0);
    for (var i = 0u; i <= N_FILTERS; i++) { masses[i] = 1.0; }
    return Choice(best, 1.0, 1u, cuts, masses, 0.0);
  }
  return Choice(rank, mass_of(rank.key), kept.n, cuts, masses, draw);
}

// Number of the first filter that cuts a token, from 1; 0: none does.
fn filter_that_cuts(key: u32, choice: Choice) -> u32 {
  var cuts = choice.cuts; // only a variable can be indexed by a variable everywhere
  for (var i = 0u; i < N_FILTERS; i++) {
    if (key < cuts[i]) { return i + 1u; }
  }
  return 0u;
}

// Smallest key that survives min-p; 0: off. The logarithm may be rounded up, so it is clamped: the
// most likely token always survives.
fn min_p_cut(greatest: u32, sample: Sample) -> u32 {
  if (sample.min_p <= 0.0) { return 0u; }
  return sort_key_of(logit_of(greatest) + min(0.0, log(sample.min_p)));
}

// True if a stage has nothing to do.
fn is_off(
  stage: u32, sample: Sample, row: ScaledRow, first: SamplerBuffer, kept: Survivors, cut: u32
) -> bool {
  switch stage {
    case LISTED: { return first.n >= row.n_listed && first.n <= CAPACITY; }
    case TOP_K: { return sample.top_k == 0u || sample.top_k >= row.n_tokens; }
    case TOP_P: { return sample.top_p >= 1.0; }
    case MIN_P: { return cut <= kept.floor; }
    default: { return false; }
  }
}

fn search_of(
  stage: u32, row: ScaledRow, sample: Sample, first: SamplerBuffer, kept: Survivors, draw: f32
) -> Search {
  let high = row.ends.greatest + 1u;
  if (stage == STRIPS) {
    // As many tokens as strips reach a key, or a few more, and all of them are in those strips.
    let need = need_of(sample);
    var range = KeyRange(row.ends.least, high, strips(), 0u, 0.0);
    if (VOCAB <= CAPACITY) { range = KeyRange(1u, high, 0u, 0u, 0.0); }
    return Search(row.summaries, range, Threshold(false, false, f32(need)), need / 2u, 0u);
  }
  if (stage == LISTED) {
    let range = KeyRange(select(1u, first.low, first.n > CAPACITY), high, row.n_tokens, 0u, 0.0);
    let threshold = Threshold(false, false, f32(row.n_listed));
    return Search(row.tokens, range, threshold, CAPACITY - most_listed(sample), 0u);
  }
  let threshold = threshold_of(stage, sample, kept.mass, draw);
  let floor = kept.floor;
  if (first.n > 0u && (floor >= first.low || reaches(threshold, f32(first.n), first.mass))) {
    return Search(row.tokens, KeyRange(floor, floor, 0u, 0u, 0.0), threshold, CAPACITY, 0u);
  }
  return search_below(stage, row, first, kept, threshold);
}

// Number of tokens to sort first: as many as the stages will probably need.
fn need_of(sample: Sample) -> u32 {
  let least = most_listed(sample);
  var need = WIDE;
  if (sample.top_k > 0u) { need = clamp(sample.top_k, least, CAPACITY / 2u); }
  if (sample.temperature == 0.0) { need = least; }
  return min(need, max(least, VOCAB / (8u * STRIP_QUADS))); // at most half of the strips
}

fn threshold_of(stage: u32, sample: Sample, mass: f32, draw: f32) -> Threshold {
  switch stage {
    case TOP_K: { return Threshold(false, false, f32(sample.top_k)); }
    case TOP_P: { return Threshold(true, false, sample.top_p * mass); }
    case MIN_P: { return Threshold(false, false, f32(VOCAB)); }
    default: { return Threshold(true, true, draw * mass); }
  }
}

// Id at which the threshold is reached among more equal tokens than a buffer holds; NO_ID if the
// stage needs none.
fn tied_id(stage: u32, row: ScaledRow, search: Search, range: KeyRange) -> u32 {
  let listed = stage == LISTED;
  if (range.n <= search.enough || !(listed || stage == DRAW)) { return NO_ID; }
  return nth_tied(row.tokens, range.low, tied_before(row, listed, search.threshold, range));
}

// Collects the tokens of a narrowed range. The first buffer takes all tokens from there up; if too
// many tie with the last candidate, ids up to `last_id` only.
fn collect_found(
  stage: u32, row: ScaledRow, search: Search, range: KeyRange, last_id: u32,
) -> Collected {
  if (stage == STRIPS) {
    let wanted = CollectFilter(range.low, NO_SORT_KEY, NO_ID);
    let n = collect_from_strips(row.tokens, row.summaries, wanted);
    let unfit = n < row.n_listed || n > CAPACITY;
    return Collected(select(n, 0u, unfit), n, range.low);
  }
  let tied = range.n > search.enough;
  let listed = stage == LISTED;
  if (range.n == 0u || (tied && !listed)) { return Collected(0u, 0u, range.low); }
  let wanted = CollectFilter(range.low, select(range.high, NO_SORT_KEY, listed), last_id);
  let n = collect(search.quads, wanted, select(CAPACITY, 0u, listed));
  if (tied) { return Collected(n, range.n_above, range.low + 1u); }
  return Collected(n, n, range.low);
}

// Number of equal tokens before the wanted one.
fn tied_before(row: ScaledRow, listed: bool, threshold: Threshold, range: KeyRange) -> u32 {
  if (listed) { return row.n_listed - range.n_above - 1u; }
  let share = max(0.0, (threshold.wanted - range.mass_above) / mass_of(range.low));
  return min(u32(share), range.n - 1u);
}

// Sorts what was collected into a buffer; the first buffer if nothing was.
fn buffer_of(stage: u32, found: Collected, range: KeyRange, first: SamplerBuffer) -> SamplerBuffer {
  let is_first = stage <= LISTED;
  if (found.n == 0u && !is_first) { return first; }
  let base = select(CAPACITY, 0u, is_first);
  var mass = 0.0;
  if (found.n > 0u) {
    sort(base, found.n);
    mass = add_up(base, found.n_whole, select(range.mass_above, 0.0, is_first));
  }
  return SamplerBuffer(base, found.n_whole, select(range.n_above, 0u, is_first), found.low, mass);
}

// Rank of tokens that were counted but not collected: too many equal ones, or the survivors of
// min-p.
fn counted_rank(stage: u32, range: KeyRange, id: u32) -> TokenRank {
  var mass = range.mass_above + mass_of(range.low) * f32(range.n);
  if (stage == MIN_P) { mass = pivot_masses[0]; }
  return TokenRank(range.low, id, range.n_above, range.n_above + range.n, mass);
}
