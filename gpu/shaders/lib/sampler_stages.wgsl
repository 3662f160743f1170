// The stages in which a token is chosen. Each asks where, in the falling order of the tokens, a
// count or a mass is reached: it narrows a span until a window holds what is left, collects and
// sorts that, and finds the place in it. They take turns in one loop, as drivers inline whatever
// is called: with walks, collections and sorts of their own they took three times as long to
// compile.
// use: totals
// use: window
// use: tied
const STRIPS = 0u; // the window of the most likely tokens, of the strips that can hold them
const LISTED = 1u; // of the whole row, where the strips gave too few for the list or too many
const TOP_K = 2u;
const TOP_P = 3u;
const MIN_P = 4u;
const DRAW = 5u;

const N_CANDIDATES = 20u; // the list that people see
const WIDE = 64u; // tokens to sort where no top-k says how many may survive

// A row and what its summaries say.
struct Scaled {
  tokens: Quads,
  summaries: Quads,
  ends: Extremes,
  mass: f32, // of all tokens
}

// The tokens that survive: all that reach `floor`.
struct Kept {
  floor: u32,
  n: u32,
  mass: f32,
}

// What a stage asks. The first window answers it where the span is empty.
struct Question {
  quads: Quads, // to walk over
  span: Span,   // that holds the answer
  query: Query,
  enough: u32,  // keys that need not be narrowed down
  n_walks: u32, // at least
}

// What was collected.
struct Found {
  n: u32,       // entries to sort; 0 also where the strips gave too few or too many
  n_whole: u32, // tokens that reach `low`; in order, they come first
  low: u32,
}

// What became of a row. Greedy: the token alone is kept, of mass 1.
struct Choice {
  place: Place,
  mass: f32,     // of the token
  n_kept: u32,
  cuts: vec3u,   // keys a token must reach to survive top-k, top-p, min-p; 0 where a filter is off
  masses: vec4f, // of all tokens, after top-k, after top-p, after min-p
  draw: f32,
}

fn n_listed() -> u32 { return min(N_CANDIDATES, VOCAB); }

fn choose(row: Scaled, sample: Sample) -> Choice {
  let greedy = sample.temperature == 0.0;
  let draw = uniform_draw(vec2u(sample.seed_low, sample.seed_high), sample.index);
  let cut = min_p_cut(row.ends.greatest, sample);
  var first = Window(0u, 0u, 0u, 1u, 0.0);
  var kept = Kept(1u, VOCAB, row.mass);
  var place = Place(0u, NO_ID, 0u, 0u, 0.0);
  var cuts = vec3u();
  var masses = vec4f(row.mass);
  for (var stage = STRIPS; stage <= select(DRAW, LISTED, greedy); stage++) {
    if (is_off(stage, sample, first, kept, cut)) { continue; }
    if (stage == MIN_P) { kept.floor = cut; }
    let question = question_of(stage, row, sample, first, kept, draw);
    let span = narrow(question.quads, question.span, question.query, question.enough,
                      question.n_walks);
    let id = tied_id(stage, row, question, span);
    let found = collect_found(stage, row, question, span, id);
    let window = window_of(stage, found, span, first);
    if (stage <= LISTED) { first = window; continue; }

    if (lane == 0u) {
      let floor = select(kept.floor, span.low, found.n > 0u);
      if (span.n > question.enough) { shared_place = counted_place(stage, span, id); }
      else { shared_place = find(window, question.query, floor); }
    }
    place = workgroupUniformLoad(&shared_place);
    if (stage == DRAW) { break; }
    kept = Kept(select(place.key, cut, stage == MIN_P), place.n_through, place.mass_through);
    let filtered = stage - TOP_K;
    cuts = select(cuts, vec3u(kept.floor), vec3u(0u, 1u, 2u) == vec3u(filtered));
    masses = select(masses, vec4f(kept.mass), vec4u(0u, 1u, 2u, 3u) > vec4u(filtered));
  }
  if (greedy) {
    let best = Place(entries[0].x, entries[0].y, 0u, 1u, 1.0);
    return Choice(best, 1.0, 1u, vec3u(), vec4f(1.0), 0.0);
  }
  return Choice(place, mass_of(place.key), kept.n, cuts, masses, draw);
}

// The key of the least likely token that min-p leaves; 0: it is off. A logarithm may be rounded up;
// the most likely token stays all the same.
fn min_p_cut(greatest: u32, sample: Sample) -> u32 {
  if (sample.min_p <= 0.0) { return 0u; }
  return key_of(logit_of(greatest) + min(0.0, log(sample.min_p)));
}

// Has a stage nothing to do?
fn is_off(stage: u32, sample: Sample, first: Window, kept: Kept, cut: u32) -> bool {
  switch stage {
    case LISTED: { return first.n >= n_listed() && first.n <= CAPACITY; }
    case TOP_K: { return sample.top_k == 0u || sample.top_k >= VOCAB; }
    case TOP_P: { return sample.top_p >= 1.0; }
    case MIN_P: { return cut <= kept.floor; }
    default: { return false; }
  }
}

fn question_of(
  stage: u32, row: Scaled, sample: Sample, first: Window, kept: Kept, draw: f32
) -> Question {
  let high = row.ends.greatest + 1u;
  if (stage == STRIPS) {
    // At least as many tokens reach a key as strips do, and few more; they lie in those strips.
    let need = need_of(sample);
    var span = Span(row.ends.least, high, strips(), 0u, 0.0);
    if (VOCAB <= CAPACITY) { span = Span(1u, high, 0u, 0u, 0.0); }
    return Question(row.summaries, span, Query(false, false, f32(need)), need / 2u, 0u);
  }
  if (stage == LISTED) {
    let span = Span(select(1u, first.low, first.n > CAPACITY), high, VOCAB, 0u, 0.0);
    let query = Query(false, false, f32(n_listed()));
    return Question(row.tokens, span, query, CAPACITY - N_CANDIDATES, 0u);
  }
  let query = query_of(stage, sample, kept.mass, draw);
  let floor = kept.floor;
  if (first.n > 0u && (floor >= first.low || reaches(query, f32(first.n), first.mass))) {
    return Question(row.tokens, Span(floor, floor, 0u, 0u, 0.0), query, CAPACITY, 0u);
  }
  if (stage == MIN_P) { // asks only how many reach the floor, which one walk counts
    return Question(row.tokens, Span(floor, floor + 1u, VOCAB, 0u, 0.0), query, 0u, 1u);
  }
  var span = Span(floor, first.low, kept.n - first.n, first.n, first.mass);
  if (span.n > CAPACITY) { span.low = lightest(span, row.ends.greatest, kept, query); }
  return Question(row.tokens, span, query, CAPACITY, 0u);
}

// How many tokens to sort: as many as will probably be asked about.
fn need_of(sample: Sample) -> u32 {
  var need = WIDE;
  if (sample.top_k > 0u) { need = clamp(sample.top_k, N_CANDIDATES, CAPACITY / 2u); }
  if (sample.temperature == 0.0) { need = N_CANDIDATES; }
  return min(need, max(N_CANDIDATES, VOCAB / (8u * STRIP_QUADS))); // half of the strips
}

fn query_of(stage: u32, sample: Sample, mass: f32, draw: f32) -> Query {
  switch stage {
    case TOP_K: { return Query(false, false, f32(sample.top_k)); }
    case TOP_P: { return Query(true, false, sample.top_p * mass); }
    case MIN_P: { return Query(false, false, f32(VOCAB)); }
    default: { return Query(true, true, draw * mass); }
  }
}

// A key below which tokens are so light that all together they cannot matter to the query. It
// leaves two keys at least, so that how many tokens have them is counted.
fn lightest(span: Span, greatest: u32, kept: Kept, query: Query) -> u32 {
  let light = kept.mass - query.wanted;
  if (!query.by_mass || !(light > 1e-4 * kept.mass)) { return span.low; } // also when it is NaN
  let key = key_of(logit_of(greatest) + log(light / f32(VOCAB)) - 1.0);
  return max(span.low, min(key, span.high - 2u));
}

// Among more equal tokens than a window holds, the one that answers; NO_ID where nobody asks.
fn tied_id(stage: u32, row: Scaled, question: Question, span: Span) -> u32 {
  let listed = stage == LISTED;
  if (span.n <= question.enough || !(listed || stage == DRAW)) { return NO_ID; }
  return nth_tied(row.tokens, span.low, tied_before(listed, question.query, span));
}

// Collects the tokens of a narrowed span. The first window is of all tokens from there up; where
// too many tie with the last that is listed, only as far as `last_id`.
fn collect_found(stage: u32, row: Scaled, question: Question, span: Span, last_id: u32) -> Found {
  if (stage == STRIPS) {
    let n = collect_from_strips(row.tokens, row.summaries, Wanted(span.low, NO_KEY, NO_ID));
    return Found(select(n, 0u, n < n_listed() || n > CAPACITY), n, span.low);
  }
  let tied = span.n > question.enough;
  let listed = stage == LISTED;
  if (span.n == 0u || (tied && !listed)) { return Found(0u, 0u, span.low); }
  let wanted = Wanted(span.low, select(span.high, NO_KEY, listed), last_id);
  let n = collect(row.tokens, wanted, select(CAPACITY, 0u, listed));
  if (tied) { return Found(n, span.n_above, span.low + 1u); }
  return Found(n, n, span.low);
}

// How many of a span's equal tokens stand before the one that is asked for.
fn tied_before(listed: bool, query: Query, span: Span) -> u32 {
  if (listed) { return n_listed() - span.n_above - 1u; }
  let share = max(0.0, (query.wanted - span.mass_above) / mass_of(span.low));
  return min(u32(share), span.n - 1u);
}

// What was collected, in order; where that is nothing, what answers instead.
fn window_of(stage: u32, found: Found, span: Span, first: Window) -> Window {
  let is_first = stage <= LISTED;
  if (found.n == 0u && !is_first) { return first; }
  let base = select(CAPACITY, 0u, is_first);
  var mass = 0.0;
  if (found.n > 0u) {
    sort(base, found.n);
    mass = add_up(base, found.n_whole, select(span.mass_above, 0.0, is_first));
  }
  return Window(base, found.n_whole, select(span.n_above, 0u, is_first), found.low, mass);
}

// The place of tokens that were counted, not collected: too many that are equal, or all that min-p
// leaves.
fn counted_place(stage: u32, span: Span, id: u32) -> Place {
  var mass = span.mass_above + mass_of(span.low) * f32(span.n);
  if (stage == MIN_P) { mass = pivot_masses[0]; }
  return Place(span.low, id, span.n_above, span.n_above + span.n, mass);
}
