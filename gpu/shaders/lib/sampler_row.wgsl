// Walks over a row whose tokens lie in the order of their ids.
//
// Replaced by sampler_row_binned.wgsl where many workgroups sorted them into bins before.

// Quads of `sort_keys`: a row's tokens, or the greatest keys of its strips.
struct KeySlice {
  first: u32,
  n: u32,
  are_tokens: bool, // tokens, which have mass
}

fn tokens_of(index: u32) -> KeySlice {
  return KeySlice(index * row_quads(), token_quads(), true);
}

fn strips_of(index: u32) -> KeySlice {
  return KeySlice(index * row_quads() + token_quads(), strips() / 4u, false);
}

fn keys_at(slice: KeySlice, quad: u32) -> vec4u { return sort_keys[slice.first + quad]; }

fn ids_at(slice: KeySlice, quad: u32) -> vec4u { return vec4u(0u, 1u, 2u, 3u) + 4u * quad; }

// Fills the pivot arrays: number of keys of the row that reach each pivot, and their mass.
fn count_at_pivots(row: KeySlice, range: KeyRange, round: u32) {
  let p = array<vec4u, 4>(pivots(range, round, 0u), pivots(range, round, 1u),
                          pivots(range, round, 2u), pivots(range, round, 3u));
  var counts = mat4x4f();
  var masses = mat4x4f();
  for (var quad = lane; quad < row.n; quad += LANES) {
    let four = keys_at(row, quad);
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
  fill_pivots(range, round, n, mass);
}

// Search of a filter or the draw below the tokens of the first buffer.
fn search_below(
  stage: u32, row: ScaledRow, first: SamplerBuffer, kept: Survivors, threshold: Threshold
) -> Search {
  let floor = kept.floor;
  if (stage == MIN_P) { // only needs the number of keys that reach the floor: one walk
    return Search(
      row.tokens, KeyRange(floor, floor + 1u, row.n_tokens, 0u, 0.0), threshold, 0u, 1u);
  }
  var range = KeyRange(floor, first.low, kept.n - first.n, first.n, first.mass);
  if (range.n > CAPACITY) { range.low = lightest(range, row.ends.greatest, kept, threshold); }
  return Search(row.tokens, range, threshold, CAPACITY, 0u);
}

// A key below which all tokens together are too light to affect the threshold. At least two keys
// remain in the range, so that their tokens are counted.
fn lightest(range: KeyRange, greatest: u32, kept: Survivors, threshold: Threshold) -> u32 {
  let light = kept.mass - threshold.wanted;
  if (!threshold.by_mass || !(light > 1e-4 * kept.mass)) { return range.low; } // also if NaN
  let key = sort_key_of(logit_of(greatest) + log(light / f32(VOCAB)) - 1.0);
  return max(range.low, min(key, range.high - 2u));
}
