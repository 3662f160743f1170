// A buffer of tokens by falling key, ties by rising id, in workgroup memory: collected from the
// row, sorted, masses accumulated, then searched for a count or a mass by bisection.
// use: sampler_rank
// prelude: const SORT_QUADS (fours of entries that a lane sorts)
const CAPACITY = 256u; // entries of a buffer, at most 4 · SORT_QUADS · LANES
const N_BUFFERS = 2u; // one of the most likely tokens, one of a range below them
const NO_ID = 0xffffffffu;

var<workgroup> entries: array<vec2u, CAPACITY * N_BUFFERS>; // key, id
var<workgroup> cumulative: array<f32, CAPACITY * N_BUFFERS>; // mass up to and with the entry
var<workgroup> strips_in: array<u32, CAPACITY>;
var<workgroup> n_strips_in: atomic<u32>;
var<workgroup> n_entries: atomic<u32>;
var<workgroup> shared_n: u32;
var<workgroup> shared_rank: TokenRank;

// Sorted tokens with keys from `low` on, below those of the n_above more likely tokens.
struct SamplerBuffer {
  base: u32, // index of its first entry
  n: u32,
  n_above: u32,
  low: u32,
  mass: f32, // of all tokens up to and including its last
}

// A token and the rank of its key.
struct TokenRank {
  key: u32,
  id: u32,
  n_above: u32,      // tokens with larger keys
  n_through: u32,    // tokens with this key or larger ones
  mass_through: f32, // mass of these
}

// Tokens to collect: low ≤ key < high; with key = low only ids up to `last_id`.
struct CollectFilter {
  low: u32,
  high: u32,
  last_id: u32,
}

fn collect_quad(row: KeySlice, quad: u32, wanted: CollectFilter, base: u32) {
  let four = keys_at(row, quad);
  if (all((four < vec4u(wanted.low)) | (four >= vec4u(wanted.high)))) { return; }
  let ids = ids_at(row, quad);
  for (var j = 0u; j < 4u; j++) {
    let id = ids[j];
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

// Returns how many tokens passed the filter; those past CAPACITY were dropped.
fn end_collecting() -> u32 {
  workgroupBarrier();
  if (lane == 0u) { shared_n = atomicLoad(&n_entries); }
  return workgroupUniformLoad(&shared_n);
}

// Collects from the whole row, unordered; returns how many entries the buffer has.
fn collect(row: KeySlice, wanted: CollectFilter, base: u32) -> u32 {
  begin_collecting();
  for (var quad = lane; quad < row.n; quad += LANES) { collect_quad(row, quad, wanted, base); }
  return min(end_collecting(), CAPACITY);
}

// Collects from strips whose greatest key reaches `low`; returns how many tokens passed, or
// CAPACITY + 1 if there are too many strips.
fn collect_from_strips(row: KeySlice, summaries: KeySlice, wanted: CollectFilter) -> u32 {
  begin_collecting();
  for (var quad = lane; quad < summaries.n; quad += LANES) {
    let four = sort_keys[summaries.first + quad];
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

// Index in a buffer of four of this lane's entries.
fn own_entries(quad: u32) -> vec4u {
  return vec4u(lane) + LANES * (vec4u(0u, 1u, 2u, 3u) + 4u * quad);
}

// Sorts n collected entries: each lane counts the entries ahead of its own.
fn sort(base: u32, n: u32) {
  var key = array<vec4u, SORT_QUADS>();
  var id = array<vec4u, SORT_QUADS>();
  var rank = array<vec4u, SORT_QUADS>();
  for (var quad = 0u; quad < SORT_QUADS; quad++) {
    let own = own_entries(quad);
    var mine = array<vec2u, 4>();
    for (var e = 0u; e < 4u; e++) {
      mine[e] = vec2u();
      if (own[e] < n) { mine[e] = entries[base + own[e]]; }
    }
    key[quad] = vec4u(mine[0].x, mine[1].x, mine[2].x, mine[3].x);
    id[quad] = vec4u(mine[0].y, mine[1].y, mine[2].y, mine[3].y);
    rank[quad] = vec4u();
  }
  for (var i = 0u; i < n; i++) {
    let other = entries[base + i];
    for (var quad = 0u; quad < SORT_QUADS; quad++) {
      let is_equal = vec4u(other.x) == key[quad];
      let ahead = (vec4u(other.x) > key[quad]) | (is_equal & (vec4u(other.y) < id[quad]));
      rank[quad] += select(vec4u(), vec4u(1u), ahead);
    }
  }
  workgroupBarrier();
  for (var quad = 0u; quad < SORT_QUADS; quad++) {
    let own = own_entries(quad);
    for (var e = 0u; e < 4u; e++) {
      if (own[e] < n) {
        entries[base + rank[quad][e]] = vec2u(key[quad][e], id[quad][e]);
        cumulative[base + rank[quad][e]] = mass_of(key[quad][e]);
      }
    }
  }
  workgroupBarrier();
}

// Accumulates the masses of n sorted entries; returns the mass up to the last one.
fn add_up(base: u32, n: u32, mass_above: f32) -> f32 {
  if (lane == 0u) {
    var sum = mass_above;
    for (var i = 0u; i < n; i++) {
      sum += cumulative[base + i];
      cumulative[base + i] = sum;
    }
    shared_sum.x = sum;
  }
  return workgroupUniformLoad(&shared_sum).x;
}

// Number of entries whose key reaches `floor`.
fn n_reaching(w: SamplerBuffer, floor: u32) -> u32 {
  var low = 0u;
  var high = w.n;
  while (low < high) {
    let middle = (low + high) / 2u;
    if (entries[w.base + middle].x >= floor) { low = middle + 1u; } else { high = middle; }
  }
  return low;
}

// First entry, of those that reach `floor`, at which the threshold is reached. If rounding leaves
// the mass short of it, the last entry that adds any mass.
fn find(w: SamplerBuffer, threshold: Threshold, floor: u32) -> TokenRank {
  let n = max(1u, n_reaching(w, floor));
  let whole = cumulative[w.base + n - 1u];
  var low = 0u;
  var high = n - 1u;
  while (low < high) {
    let middle = (low + high) / 2u;
    let mass = cumulative[w.base + middle];
    let answers = reaches(threshold, f32(w.n_above + middle + 1u), mass);
    let enough = answers || (threshold.by_mass && mass >= whole);
    if (enough) { high = middle; } else { low = middle + 1u; }
  }
  let entry = entries[w.base + low];
  var begin = low;
  while (begin > 0u && entries[w.base + begin - 1u].x == entry.x) { begin--; }
  var end = low + 1u;
  while (end < w.n && entries[w.base + end].x == entry.x) { end++; }
  let mass_through = cumulative[w.base + end - 1u];
  return TokenRank(entry.x, entry.y, w.n_above + begin, w.n_above + end, mass_through);
}
