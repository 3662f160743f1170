// Threshold search in a row of keys without sorting it: each walk over the row narrows the range of
// keys in which a wanted count or mass is reached to a sixteenth.
//
// A walk compares every key with sixteen pivots and sums, in registers, how many keys reach each
// pivot and their mass. Every sum has one fixed order (by lane, then over the lanes in SUM_PARTS
// parts), so its bits do not depend on other work. Every result is uniform over the
// workgroup, also for the compiler, so barriers may follow a branch on it.
//
// use: sort_keys
// use: sampler_extremes
// use: sampler_row
// use: exponentials
override VOCAB: u32;
override SUM_PARTS: u32 = 1u; // lanes that share a sum over all lanes; LANES / 4 at most

const PIVOTS = 16u;
const FINITE = 1e30; // logits of smaller magnitude are divided into even steps

var<workgroup> partials: array<vec4f, LANES * 4>; // [pivot / 4][lane]
var<workgroup> pivot_keys: array<u32, PIVOTS>;
var<workgroup> pivot_masses: array<f32, PIVOTS>;
var<workgroup> pivot_counts: array<f32, PIVOTS>;
var<workgroup> shared_sum: vec4f;
var<workgroup> shared_range: KeyRange;

// Keys with low ≤ key < high.
struct KeyRange {
  low: u32,
  high: u32,
  n: u32,          // number of keys of the row in the range
  n_above: u32,    // number of keys that reach `high`
  mass_above: f32, // mass of these
}

// The rank in falling order at which the count or the mass reaches `wanted` (`beyond`: exceeds it).
struct Threshold {
  by_mass: bool,
  beyond: bool,
  wanted: f32,
}

fn reaches(threshold: Threshold, count: f32, mass: f32) -> bool {
  let total = select(count, mass, threshold.by_mass);
  return total > threshold.wanted || (total == threshold.wanted && !threshold.beyond);
}

// Unnormalised probabilities: 1 for the most likely token.
fn masses_of(four: vec4u) -> vec4f { return exponentials(logits_of(four) - top); }

fn mass_of(key: u32) -> f32 { return masses_of(vec4u(key)).x; }

// Pivots 4q to 4q + 3: even steps of the logit in the first walks, of the key later.
fn pivots(range: KeyRange, round: u32, q: u32) -> vec4u {
  let i = vec4u(0u, 1u, 2u, 3u) + 4u * q;
  let low = logit_of(range.low);
  let high = logit_of(range.high);
  let width = range.high - range.low;
  var by_key = range.low + (width / PIVOTS) * i + ((width % PIVOTS) * i) / PIVOTS;
  if (round < 3u && low > -FINITE && high < FINITE) {
    let even = sort_keys_of(mix(vec4f(low), vec4f(high), vec4f(i) / f32(PIVOTS)));
    by_key = clamp(even, vec4u(range.low), vec4u(range.high - 1u));
  }
  return select(by_key, vec4u(range.low), i == vec4u());
}

// `amount` for each pivot that `key` reaches, 0 for the others.
fn at_pivots(key: u32, amount: f32, p: array<vec4u, 4>) -> mat4x4f {
  let k = vec4u(key);
  let a = vec4f(amount);
  let none = vec4f();
  return mat4x4f(select(none, a, k >= p[0]), select(none, a, k >= p[1]),
                 select(none, a, k >= p[2]), select(none, a, k >= p[3]));
}

// Sums over all lanes; lane q < 4 gets those of pivots 4q to 4q + 3.
fn sum_pivots(mine: mat4x4f) -> vec4f {
  for (var q = 0u; q < 4u; q++) { partials[q * LANES + lane] = mine[q]; }
  workgroupBarrier();
  sum_parts(4u);
  var total = vec4f();
  if (lane < 4u) {
    for (var l = 0u; l < sums_left(); l++) { total += partials[lane * sums_left() + l]; }
  }
  workgroupBarrier();
  return total;
}

// Fills the pivot arrays with what lane q < 4 has of pivots 4q to 4q + 3.
fn fill_pivots(range: KeyRange, round: u32, n: vec4f, mass: vec4f) {
  if (lane < 4u) {
    for (var j = 0u; j < 4u; j++) {
      pivot_keys[lane * 4u + j] = pivots(range, round, lane)[j];
      pivot_counts[lane * 4u + j] = n[j];
      pivot_masses[lane * 4u + j] = mass[j];
    }
  }
  workgroupBarrier();
}

// Number of sums in a row of `partials` after `sum_parts`.
fn sums_left() -> u32 { return select(SUM_PARTS, LANES, SUM_PARTS == 1u); }

// Adds up the first `n_rows` rows of `partials`, each in SUM_PARTS parts: every SUM_PARTS-th sum.
// Neighbouring lanes read neighbouring sums.
fn sum_parts(n_rows: u32) {
  if (SUM_PARTS == 1u) { return; }
  var total = vec4f();
  if (lane < n_rows * SUM_PARTS) {
    let first = lane / SUM_PARTS * LANES;
    for (var l = lane % SUM_PARTS; l < LANES; l += SUM_PARTS) { total += partials[first + l]; }
  }
  workgroupBarrier();
  if (lane < n_rows * SUM_PARTS) { partials[lane] = total; }
  workgroupBarrier();
}

fn sum_lanes(mine: vec4f) -> vec4f {
  partials[lane] = mine;
  workgroupBarrier();
  sum_parts(1u);
  if (lane == 0u) {
    var total = vec4f();
    for (var l = 0u; l < sums_left(); l++) { total += partials[l]; }
    shared_sum = total;
  }
  return workgroupUniformLoad(&shared_sum);
}

// The highest part between two pivots in which the threshold is reached; if none, the last part
// that adds to it; if none adds, an empty one.
fn pick_subrange(range: KeyRange, threshold: Threshold) -> KeyRange {
  var picked = KeyRange(range.low, range.high, 0u, range.n_above, range.mass_above);
  var part = picked;
  for (var i = PIVOTS; i > 0u; i--) {
    let count = pivot_counts[i - 1u];
    let mass = pivot_masses[i - 1u];
    part.low = pivot_keys[i - 1u];
    part.n = u32(count) - part.n_above;
    let adds = part.n > 0u && (mass > part.mass_above || !threshold.by_mass);
    if (adds) { picked = part; }
    if (adds && reaches(threshold, count, mass)) { break; }
    part = KeyRange(0u, part.low, 0u, u32(count), mass);
  }
  return picked;
}

// Narrows a range until it holds at most `enough` keys or only equal ones, by at least `n_walks`
// walks.
fn narrow(
  row: KeySlice, start: KeyRange, threshold: Threshold, enough: u32, n_walks: u32,
) -> KeyRange {
  var range = start;
  for (
    var walk = 0u;
    walk < n_walks || (range.n > enough && range.high - range.low > 1u);
    walk++
  ) {
    count_at_pivots(row, range, walk);
    if (lane == 0u) { shared_range = pick_subrange(range, threshold); }
    range = workgroupUniformLoad(&shared_range);
  }
  return range;
}
