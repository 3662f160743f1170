// Order statistics of one row of logits without sorting it: thresholds, totals, ties.
//
// Logits map to integer keys of the same order. `search` finds the largest key whose tokens at or
// above it reach a count or a mass, four bits at a time, from a histogram of the keys that share
// the bits found so far. Every sum is made in one fixed order (by lane, then over the lanes), so
// its bits do not depend on what else runs. Every result is the same in all lanes, and known to be:
// barriers may stand behind a branch on it.
//
// Four tokens are read at a time, the last ones with `id < VOCAB` in hand: what lies behind the row
// is no token.
//
// The shader that uses this declares `logits: array<vec4f>` and sets `lane`, `first` and `top`.
override VOCAB: u32;
override LANES: u32 = 64u;

const LOWEST = -3.4e38;
const BINS = 16u;
const NO_ID = 0xffffffffu;

var<private> lane: u32;
var<private> first: u32; // where the row begins in `logits`
var<private> top: f32;   // the largest logit

var<workgroup> bins: array<f32, LANES * BINS>;
var<workgroup> bin_totals: array<f32, BINS>;
var<workgroup> lane_values: array<vec4f, LANES>;
var<workgroup> shared_sum: vec4f;
var<workgroup> shared_found: Found;
var<workgroup> shared_standing: Standing;
var<workgroup> n_above: atomic<u32>;
var<workgroup> n_equal: atomic<u32>;
var<workgroup> first_id: atomic<u32>;

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

fn sum_lanes(value: vec4f) -> vec4f {
  lane_values[lane] = value;
  workgroupBarrier();
  if (lane == 0u) {
    var total = vec4f();
    for (var l = 0u; l < LANES; l++) { total += lane_values[l]; }
    shared_sum = total;
  }
  return workgroupUniformLoad(&shared_sum);
}

fn max_lanes(value: f32) -> f32 {
  lane_values[lane].x = value;
  workgroupBarrier();
  if (lane == 0u) {
    var greatest = LOWEST;
    for (var l = 0u; l < LANES; l++) { greatest = max(greatest, lane_values[l].x); }
    shared_sum.x = greatest;
  }
  return workgroupUniformLoad(&shared_sum).x;
}

// Lets the compiler see that a value is the same in all lanes.
fn of_first_lane(value: f32) -> f32 {
  if (lane == 0u) { shared_sum.x = value; }
  return workgroupUniformLoad(&shared_sum).x;
}

struct Found {
  key: u32,   // the threshold
  above: f32, // total of the tokens with a larger key
}

// The largest key t >= floor with total(keys >= t) >= wanted (> wanted when `beyond`), counting
// tokens, or their mass. When rounding leaves the whole total short of `wanted`, the smallest key.
fn search(floor: u32, by_mass: bool, wanted: f32, beyond: bool) -> Found {
  var found = Found(0u, 0.0);
  for (var shift = 28i; shift >= 0i; shift -= 4i) {
    fill_bins(floor, by_mass, found.key, u32(shift));
    if (lane == 0u) { shared_found = pick_bin(found, u32(shift), wanted, beyond); }
    found = workgroupUniformLoad(&shared_found);
  }
  return found;
}

// Totals by the four bits at `shift`, of the tokens whose higher bits are those of `key`.
fn fill_bins(floor: u32, by_mass: bool, key: u32, shift: u32) {
  for (var b = 0u; b < BINS; b++) { bins[lane * BINS + b] = 0.0; }
  for (var chunk = lane; chunk * 4u < VOCAB; chunk += LANES) {
    let four = logits[first + chunk];
    for (var j = 0u; j < 4u; j++) {
      let k = key_of(four[j]);
      // Shifting by 32 is undefined, so the first round shifts twice.
      let matches = k >= floor && (((k ^ key) >> shift) >> 4u) == 0u;
      if (matches && chunk * 4u + j < VOCAB) {
        bins[lane * BINS + ((k >> shift) & 15u)] += select(1.0, mass_of(four[j]), by_mass);
      }
    }
  }
  workgroupBarrier();
  for (var b = lane; b < BINS; b += LANES) {
    var total = 0.0;
    for (var l = 0u; l < LANES; l++) { total += bins[l * BINS + b]; }
    bin_totals[b] = total;
  }
  workgroupBarrier();
}

// From the top, the bin that reaches `wanted`; the last that holds anything if none does.
fn pick_bin(before: Found, shift: u32, wanted: f32, beyond: bool) -> Found {
  var found = before;
  var reached = before.above;
  for (var i = 0u; i < BINS; i++) {
    let b = BINS - 1u - i;
    if (bin_totals[b] == 0.0) { continue; }
    found = Found(before.key | (b << shift), reached);
    reached += bin_totals[b];
    if (reached > wanted || (reached == wanted && !beyond)) { break; }
  }
  return found;
}

// Where a key stands among the others.
struct Standing {
  n_above: u32,  // tokens with a larger key
  n_equal: u32,  // tokens with this key
  first_id: u32, // the lowest of their ids; NO_ID when there is none
}

fn standing_of(key: u32) -> Standing {
  if (lane == 0u) {
    atomicStore(&n_above, 0u);
    atomicStore(&n_equal, 0u);
    atomicStore(&first_id, NO_ID);
  }
  workgroupBarrier();
  var mine = Standing(0u, 0u, NO_ID);
  for (var chunk = lane; chunk * 4u < VOCAB; chunk += LANES) {
    let four = logits[first + chunk];
    for (var j = 0u; j < 4u; j++) {
      let id = chunk * 4u + j;
      let k = key_of(four[j]);
      if (k < key || id >= VOCAB) { continue; }
      mine.n_above += select(0u, 1u, k > key);
      mine.n_equal += select(0u, 1u, k == key);
      mine.first_id = min(mine.first_id, select(NO_ID, id, k == key));
    }
  }
  atomicAdd(&n_above, mine.n_above);
  atomicAdd(&n_equal, mine.n_equal);
  atomicMin(&first_id, mine.first_id);
  workgroupBarrier();
  if (lane == 0u) {
    shared_standing = Standing(atomicLoad(&n_above), atomicLoad(&n_equal), atomicLoad(&first_id));
  }
  return workgroupUniformLoad(&shared_standing);
}

// How many tokens up to `last` have this key.
fn n_tied_up_to(key: u32, last: u32) -> u32 {
  var n = 0u;
  for (var chunk = lane; chunk * 4u <= last; chunk += LANES) {
    let four = logits[first + chunk];
    for (var j = 0u; j < 4u; j++) {
      n += select(0u, 1u, key_of(four[j]) == key && chunk * 4u + j <= last);
    }
  }
  return u32(sum_lanes(vec4f(f32(n))).x);
}

// The id of the n-th token with this key, counted from 0 by rising id; there must be that many.
fn nth_tied(key: u32, n: u32) -> u32 {
  var low = 0u;
  var high = VOCAB - 1u;
  while (low < high) {
    let middle = (low + high) / 2u;
    if (n_tied_up_to(key, middle) > n) { high = middle; } else { low = middle + 1u; }
  }
  return low;
}
