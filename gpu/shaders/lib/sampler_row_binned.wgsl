// Walks over a row whose tokens were sorted into bins: over those of one bin, with masses as
// integers, because the order of their ids is left open.
//
// Replaces sampler_row.wgsl on GPUs for large vocabularies. Whole rows are only counted.
// bins  [n_samples][bins_quads()] vec4  see lib/sampler_bins.wgsl
// use: sampler_bins
@group(0) @binding(8) var<storage, read> bins: array<vec4u>;

const NO_BIN = 0xffffffffu;

var<private> row_index: u32;
var<workgroup> reaching_bin: atomic<u32>;
var<workgroup> adding_bin: atomic<u32>;
var<workgroup> shared_search: Search;

// Quads of a row's tokens, of the greatest keys of its strips, or of the ids of a bin.
struct KeySlice {
  first: u32,
  n: u32,
  bin: u32, // or NO_BIN
  n_above: u32, // tokens in higher bins
  mass_above: f32,
}

fn tokens_of(index: u32) -> KeySlice {
  row_index = index;
  return KeySlice(index * row_quads(), token_quads(), NO_BIN, 0u, 0.0);
}

fn strips_of(index: u32) -> KeySlice {
  return KeySlice(index * row_quads() + token_quads(), strips() / 4u, NO_BIN, 0u, 0.0);
}

fn span_of(bin: u32) -> BinSpan {
  let words = bins[span_quad(row_index, bin)];
  return BinSpan(words.x, words.y, words.z, bitcast<f32>(words.w));
}

fn mass_above(bin: u32) -> f32 {
  if (bin == 0u) { return 0.0; }
  return span_of(bin - 1u).mass_through;
}

fn tokens_of_bin(bin: u32) -> KeySlice {
  let span = span_of(bin);
  let first = ids_quad(row_index) + span.first;
  return KeySlice(first, (span.n + 3u) / 4u, bin, span.n_through - span.n, mass_above(bin));
}

fn key_of(id: u32) -> u32 {
  if (id == NO_TOKEN) { return 0u; }
  var four = sort_keys[row_index * row_quads() + id / 4u];
  return four[id % 4u];
}

fn keys_at(slice: KeySlice, quad: u32) -> vec4u {
  if (slice.bin == NO_BIN) { return sort_keys[slice.first + quad]; }
  let ids = bins[slice.first + quad];
  return vec4u(key_of(ids.x), key_of(ids.y), key_of(ids.z), key_of(ids.w));
}

fn ids_at(slice: KeySlice, quad: u32) -> vec4u {
  if (slice.bin == NO_BIN) { return vec4u(0u, 1u, 2u, 3u) + 4u * quad; }
  return bins[slice.first + quad];
}

// `amount` for each pivot of four that `key` reaches, 0 for the others.
fn units_at(key: u32, amount: u32, p: vec4u) -> vec4u {
  return select(vec4u(), vec4u(amount), vec4u(key) >= p);
}

// Fills the pivot arrays: number of keys of the row that reach each pivot, and in a bin their mass.
fn count_at_pivots(slice: KeySlice, range: KeyRange, round: u32) {
  let p = array<vec4u, 4>(pivots(range, round, 0u), pivots(range, round, 1u),
                          pivots(range, round, 2u), pivots(range, round, 3u));
  var counts = mat4x4f();
  var units = array<vec4u, 4>();
  for (var quad = lane; quad < slice.n; quad += LANES) {
    let four = keys_at(slice, quad);
    counts += at_pivots(four.x, 1.0, p) + at_pivots(four.y, 1.0, p)
            + at_pivots(four.z, 1.0, p) + at_pivots(four.w, 1.0, p);
    if (slice.bin != NO_BIN) {
      let u = units_of(four, vec4u(slice.bin));
      for (var q = 0u; q < 4u; q++) {
        units[q] += units_at(four.x, u.x, p[q]) + units_at(four.y, u.y, p[q])
                  + units_at(four.z, u.z, p[q]) + units_at(four.w, u.w, p[q]);
      }
    }
  }
  let n = f32(slice.n_above) + sum_pivots(counts);
  var mass = vec4f();
  if (slice.bin != NO_BIN) {
    // Halves of the lanes' sums are so small that floats add them exactly.
    var low = mat4x4f();
    var high = mat4x4f();
    for (var q = 0u; q < 4u; q++) {
      low[q] = vec4f(units[q] & vec4u(0xffffu));
      high[q] = vec4f(units[q] >> vec4u(16u));
    }
    let sum = sum_pivots(high) * 0x1p16f + sum_pivots(low);
    mass = slice.mass_above + sum * unit_mass(slice.bin);
  }
  fill_pivots(range, round, n, mass);
}

// Search of a filter or the draw below the tokens of the first buffer: in one bin.
fn search_below(
  stage: u32, row: ScaledRow, first: SamplerBuffer, kept: Survivors, threshold: Threshold
) -> Search {
  set_bins(row.ends);
  find_bin(threshold, bins_of(vec4u(kept.floor)).x);
  if (lane == 0u) { shared_search = search_of_bin(stage, row, kept.floor, threshold); }
  return workgroupUniformLoad(&shared_search);
}

// Finds the highest bin in which the threshold is reached, down to that of the floor, and the
// lowest that adds to it.
fn find_bin(threshold: Threshold, floor_bin: u32) {
  if (lane == 0u) {
    atomicStore(&reaching_bin, NO_BIN);
    atomicStore(&adding_bin, 0u);
  }
  workgroupBarrier();
  for (var bin = lane; bin <= floor_bin; bin += LANES) {
    let span = span_of(bin);
    let adds = span.n > 0u && (span.mass_through > mass_above(bin) || !threshold.by_mass);
    if (!adds) { continue; }
    atomicMax(&adding_bin, bin);
    if (reaches(threshold, f32(span.n_through), span.mass_through)) {
      atomicMin(&reaching_bin, bin);
    }
  }
  workgroupBarrier();
}

fn search_of_bin(stage: u32, row: ScaledRow, floor: u32, threshold: Threshold) -> Search {
  var bin = atomicLoad(&reaching_bin);
  if (bin == NO_BIN) { bin = atomicLoad(&adding_bin); } // rounding left the mass short of it
  if (stage == MIN_P) { bin = bins_of(vec4u(floor)).x; }
  let tokens = tokens_of_bin(bin);
  var range = KeyRange(floor, floor + 1u, span_of(bin).n, tokens.n_above, tokens.mass_above);
  if (stage == MIN_P) { // only needs the number of keys that reach the floor: one walk
    return Search(tokens, range, threshold, 0u, 1u);
  }
  // A little wider than the bin, whose tokens alone are looked at.
  let margin = 0x1p-20f * (1.0 + abs(top) + abs(logit_of_bin(bin)));
  let high = sort_key_of(logit_of_bin(bin) + margin);
  range.high = max(range.high, min(high, row.ends.greatest + 1u));
  if (bin < N_BINS - 1u) {
    range.low = max(floor, min(sort_key_of(logit_of_bin(bin + 1u) - margin), range.high - 1u));
  }
  return Search(tokens, range, threshold, CAPACITY, 0u);
}
