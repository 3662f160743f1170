// Thresholds on a row of keys without sorting it: the range of keys that holds a wanted count or
// mass is narrowed to a sixteenth by each walk over the row.
//
// A walk compares every key with sixteen pivots and adds up, in registers, how many keys reach each
// and what their tokens weigh. Every sum is made in one fixed order (by lane, then over the lanes),
// so its bits do not depend on what else runs. Every result is the same in all lanes, and known to
// be: barriers may stand behind a branch on it.
//
// The shader that uses this declares `keys: array<vec4u>` and sets `lane` and `top`.
// use: keys
override VOCAB: u32;
override LANES: u32 = 64u;

const PIVOTS = 16u;
const FINITE = 1e30; // logits closer to 0 can be divided evenly

var<private> lane: u32;
var<private> top: f32; // the largest scaled logit

var<workgroup> partials: array<vec4f, LANES * 4>; // by lane, of the pivots
var<workgroup> pivot_keys: array<u32, PIVOTS>;
var<workgroup> pivot_masses: array<f32, PIVOTS>;
var<workgroup> pivot_counts: array<f32, PIVOTS>;
var<workgroup> shared_sum: vec4f;
var<workgroup> shared_span: Span;

// Some quads of `keys`: a row's tokens, or the greatest keys of its strips.
struct Quads {
  first: u32,
  n: u32,
  are_tokens: bool, // and weigh something
}

// Keys from `low` up to, but not including, `high`.
struct Span {
  low: u32,
  high: u32,
  n: u32,          // how many are in the row
  n_above: u32,    // how many reach `high`
  mass_above: f32, // of these
}

// The place in falling order where the count, or the mass, reaches what is wanted, or exceeds it.
struct Query {
  by_mass: bool,
  beyond: bool,
  wanted: f32,
}

fn reaches(query: Query, count: f32, mass: f32) -> bool {
  let total = select(count, mass, query.by_mass);
  return total > query.wanted || (total == query.wanted && !query.beyond);
}

// Unnormalised probability: 1 for the most likely token.
fn masses_of(four: vec4u) -> vec4f { return exp(logits_of(four) - top); }

fn mass_of(key: u32) -> f32 { return masses_of(vec4u(key)).x; }

// Pivots 4q to 4q + 3: even steps of the logit while that spreads tokens well, else of the key.
fn pivots(span: Span, round: u32, q: u32) -> vec4u {
  let i = vec4u(0u, 1u, 2u, 3u) + 4u * q;
  let low = logit_of(span.low);
  let high = logit_of(span.high);
  let width = span.high - span.low;
  var by_key = span.low + (width / PIVOTS) * i + ((width % PIVOTS) * i) / PIVOTS;
  if (round < 3u && low > -FINITE && high < FINITE) {
    let even = keys_of(mix(vec4f(low), vec4f(high), vec4f(i) / f32(PIVOTS)));
    by_key = clamp(even, vec4u(span.low), vec4u(span.high - 1u));
  }
  return select(by_key, vec4u(span.low), i == vec4u());
}

// `amount`, for each pivot that `key` reaches.
fn at_pivots(key: u32, amount: f32, p: array<vec4u, 4>) -> mat4x4f {
  let k = vec4u(key);
  let a = vec4f(amount);
  let none = vec4f();
  return mat4x4f(select(none, a, k >= p[0]), select(none, a, k >= p[1]),
                 select(none, a, k >= p[2]), select(none, a, k >= p[3]));
}

// Sums over all lanes; lane q < 4 is given those of pivots 4q to 4q + 3.
fn sum_pivots(mine: mat4x4f) -> vec4f {
  for (var q = 0u; q < 4u; q++) { partials[lane * 4u + q] = mine[q]; }
  workgroupBarrier();
  var total = vec4f();
  if (lane < 4u) {
    for (var l = 0u; l < LANES; l++) { total += partials[l * 4u + lane]; }
  }
  workgroupBarrier();
  return total;
}

fn sum_lanes(mine: vec4f) -> vec4f {
  partials[lane] = mine;
  workgroupBarrier();
  if (lane == 0u) {
    var total = vec4f();
    for (var l = 0u; l < LANES; l++) { total += partials[l]; }
    shared_sum = total;
  }
  return workgroupUniformLoad(&shared_sum);
}

// Fills the arrays of pivots: how many keys of the row reach each, and the mass of their tokens.
fn tally(row: Quads, span: Span, round: u32) {
  let p = array<vec4u, 4>(pivots(span, round, 0u), pivots(span, round, 1u),
                          pivots(span, round, 2u), pivots(span, round, 3u));
  var counts = mat4x4f();
  var masses = mat4x4f();
  for (var quad = lane; quad < row.n; quad += LANES) {
    let four = keys[row.first + quad];
    counts += at_pivots(four.x, 1.0, p) + at_pivots(four.y, 1.0, p)
            + at_pivots(four.z, 1.0, p) + at_pivots(four.w, 1.0, p);
    if (row.are_tokens) {
      let m = masses_of(four);
      masses += at_pivots(four.x, m.x, p) + at_pivots(four.y, m.y, p)
              + at_pivots(four.z, m.z, p) + at_pivots(four.w, m.w, p);
    }
  }
  let n = sum_pivots(counts);
  var mass = vec4f();
  if (row.are_tokens) { mass = sum_pivots(masses); }
  if (lane < 4u) {
    for (var j = 0u; j < 4u; j++) {
      pivot_keys[lane * 4u + j] = pivots(span, round, lane)[j];
      pivot_counts[lane * 4u + j] = n[j];
      pivot_masses[lane * 4u + j] = mass[j];
    }
  }
  workgroupBarrier();
}

// From the top, the part between two pivots where the query is answered; if that is nowhere, the
// last that adds anything; an empty one if none does.
fn pick_part(span: Span, query: Query) -> Span {
  var picked = Span(span.low, span.high, 0u, span.n_above, span.mass_above);
  var part = picked;
  for (var i = PIVOTS; i > 0u; i--) {
    let count = pivot_counts[i - 1u];
    let mass = pivot_masses[i - 1u];
    part.low = pivot_keys[i - 1u];
    part.n = u32(count) - part.n_above;
    let adds = part.n > 0u && (mass > part.mass_above || !query.by_mass);
    if (adds) { picked = part; }
    if (adds && reaches(query, count, mass)) { break; }
    part = Span(0u, part.low, 0u, u32(count), mass);
  }
  return picked;
}

// Narrows a span until it holds at most `enough` keys, or all that it holds are equal; by `n_walks`
// walks at least.
fn narrow(row: Quads, start: Span, query: Query, enough: u32, n_walks: u32) -> Span {
  var span = start;
  for (
    var walk = 0u;
    walk < n_walks || (span.n > enough && span.high - span.low > 1u);
    walk++
  ) {
    tally(row, span, walk);
    if (lane == 0u) { shared_span = pick_part(span, query); }
    span = workgroupUniformLoad(&shared_span);
  }
  return span;
}
