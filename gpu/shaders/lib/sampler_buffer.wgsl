// A stretch of the tokens in falling order, ties by rising id: collected, sorted and added up in
// workgroup memory, where a count or a mass is found by bisection.
// use: ranking
const CAPACITY = 256u; // entries of a window; LANES times four at most
const WINDOWS = 2u; // that of the most likely tokens, and another below it
const NO_ID = 0xffffffffu;

var<workgroup> entries: array<vec2u, CAPACITY * WINDOWS>; // key, id
var<workgroup> cumulative: array<f32, CAPACITY * WINDOWS>; // mass down to and with the entry
var<workgroup> strips_in: array<u32, CAPACITY>;
var<workgroup> n_strips_in: atomic<u32>;
var<workgroup> n_entries: atomic<u32>;
var<workgroup> shared_n: u32;
var<workgroup> shared_place: Place;

// All tokens whose keys lie from `low` up to those of the n_above tokens before them.
struct Window {
  base: u32, // of its entries
  n: u32,
  n_above: u32,
  low: u32,
  mass: f32, // of the tokens down to its last
}

// A token in falling order, and where its key stands.
struct Place {
  key: u32,
  id: u32,
  n_above: u32,      // tokens with a larger key
  n_through: u32,    // and those with this key
  mass_through: f32, // of these
}

// Which tokens to collect: keys from `low` to below `high`; of those that equal `low`, ids up to
// `last_id`.
struct Wanted {
  low: u32,
  high: u32,
  last_id: u32,
}

fn collect_quad(row: Quads, quad: u32, wanted: Wanted, base: u32) {
  let four = keys[row.first + quad];
  if (all((four < vec4u(wanted.low)) | (four >= vec4u(wanted.high)))) { return; }
  for (var j = 0u; j < 4u; j++) {
    let id = quad * 4u + j;
    let key = four[j];
    if (key < wanted.low || key >= wanted.high || (key == wanted.low && id > wanted.last_id)) {
      continue;
    }
    let at = atomicAdd(&n_entries, 1u);
    if (at < CAPACITY) { entries[base + at] = vec2u(key, id); }
  }
}

fn begin_collecting() {
  if (lane == 0u) {
    atomicStore(&n_entries, 0u);
    atomicStore(&n_strips_in, 0u);
  }
  workgroupBarrier();
}

// How many tokens were wanted; those past the capacity were not kept.
fn end_collecting() -> u32 {
  workgroupBarrier();
  if (lane == 0u) { shared_n = atomicLoad(&n_entries); }
  return workgroupUniformLoad(&shared_n);
}

// From the whole row, in no order; how many were kept.
fn collect(row: Quads, wanted: Wanted, base: u32) -> u32 {
  begin_collecting();
  for (var quad = lane; quad < row.n; quad += LANES) { collect_quad(row, quad, wanted, base); }
  return min(end_collecting(), CAPACITY);
}

// From strips that can hold such a token; how many there were, or CAPACITY + 1 if the strips alone
// are too many.
fn collect_from_strips(row: Quads, summaries: Quads, wanted: Wanted) -> u32 {
  begin_collecting();
  for (var quad = lane; quad < summaries.n; quad += LANES) {
    let four = keys[summaries.first + quad];
    for (var j = 0u; j < 4u; j++) {
      if (four[j] < wanted.low) { continue; }
      let at = atomicAdd(&n_strips_in, 1u);
      if (at < CAPACITY) { strips_in[at] = quad * 4u + j; }
    }
  }
  workgroupBarrier();
  if (lane == 0u) { shared_n = atomicLoad(&n_strips_in); }
  let n = workgroupUniformLoad(&shared_n);
  if (n > CAPACITY) { return CAPACITY + 1u; }
  for (var i = lane; i < n * STRIP_QUADS; i += LANES) {
    let strip = strips_in[i / STRIP_QUADS];
    collect_quad(row, strip_quad(strip, i % STRIP_QUADS), wanted, 0u);
  }
  return end_collecting();
}

// Puts n collected entries in order: each counts those ahead of it.
fn sort(base: u32, n: u32) {
  let own = vec4u(lane) + LANES * vec4u(0u, 1u, 2u, 3u);
  var mine: array<vec2u, 4>;
  for (var e = 0u; e < 4u; e++) {
    mine[e] = vec2u();
    if (own[e] < n) { mine[e] = entries[base + own[e]]; }
  }
  let key = vec4u(mine[0].x, mine[1].x, mine[2].x, mine[3].x);
  let id = vec4u(mine[0].y, mine[1].y, mine[2].y, mine[3].y);
  var place = vec4u();
  for (var i = 0u; i < n; i++) {
    let other = entries[base + i];
    let ahead = (vec4u(other.x) > key) | ((vec4u(other.x) == key) & (vec4u(other.y) < id));
    place += select(vec4u(), vec4u(1u), ahead);
  }
  workgroupBarrier();
  for (var e = 0u; e < 4u; e++) {
    if (own[e] < n) {
      entries[base + place[e]] = mine[e];
      cumulative[base + place[e]] = mass_of(mine[e].x);
    }
  }
  workgroupBarrier();
}

// Adds up the masses of n sorted entries; returns that of the last, or what lies above them.
fn add_up(base: u32, n: u32, mass_above: f32) -> f32 {
  if (lane == 0u) {
    var sum = mass_above;
    for (var i = base; i < base + n; i++) {
      sum += cumulative[i];
      cumulative[i] = sum;
    }
    shared_sum.x = sum;
  }
  return workgroupUniformLoad(&shared_sum).x;
}

// How many of the window's entries reach `floor`.
fn n_reaching(w: Window, floor: u32) -> u32 {
  var low = 0u;
  var high = w.n;
  while (low < high) {
    let middle = (low + high) / 2u;
    if (entries[w.base + middle].x >= floor) { low = middle + 1u; } else { high = middle; }
  }
  return low;
}

// Among the entries that reach `floor`, the first that answers the query. Rounding may leave a mass
// short of what is wanted: then the last that adds any.
fn find(w: Window, query: Query, floor: u32) -> Place {
  let n = max(1u, n_reaching(w, floor));
  let whole = cumulative[w.base + n - 1u];
  var low = 0u;
  var high = n - 1u;
  while (low < high) {
    let middle = (low + high) / 2u;
    let mass = cumulative[w.base + middle];
    let answers = reaches(query, f32(w.n_above + middle + 1u), mass);
    if (answers || (query.by_mass && mass >= whole)) { high = middle; } else { low = middle + 1u; }
  }
  let entry = entries[w.base + low];
  var begin = low;
  while (begin > 0u && entries[w.base + begin - 1u].x == entry.x) { begin--; }
  var end = low + 1u;
  while (end < w.n && entries[w.base + end].x == entry.x) { end++; }
  let mass_through = cumulative[w.base + end - 1u];
  return Place(entry.x, entry.y, w.n_above + begin, w.n_above + end, mass_through);
}
