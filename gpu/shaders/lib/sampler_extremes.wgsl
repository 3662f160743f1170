// Extremes of row number `index` of the sampler from the summaries of its strips.
//
// The shader that uses this declares `sort_keys: array<vec4u>` and sets `lane` and `top`.
// use: sort_keys
override LANES: u32 = 64u;

var<private> lane: u32;
var<private> top: f32; // the largest scaled logit

var<workgroup> extremes: array<atomic<u32>, 3>;
var<workgroup> shared_extremes: Extremes;

struct Extremes {
  least: u32,    // smallest of the strips' greatest keys
  greatest: u32, // greatest of all keys
  raw: u32,      // key of the largest raw logit
}

fn find_extremes(index: u32) -> Extremes {
  let first = index * row_quads() + token_quads();
  let n = strips() / 4u;
  if (lane == 0u) {
    atomicStore(&extremes[0], NO_SORT_KEY);
    atomicStore(&extremes[1], 1u);
    atomicStore(&extremes[2], 1u);
  }
  workgroupBarrier();
  var found = Extremes(NO_SORT_KEY, 1u, 1u);
  for (var i = lane; i < n; i += LANES) {
    let four = sort_keys[first + i];
    let low = select(four, vec4u(NO_SORT_KEY), four == vec4u());
    let raw = sort_keys_of(bitcast<vec4f>(sort_keys[first + 2u * n + i]));
    found.least = min(found.least, min(min(low.x, low.y), min(low.z, low.w)));
    found.greatest = max(found.greatest, max(max(four.x, four.y), max(four.z, four.w)));
    found.raw = max(found.raw, max(max(raw.x, raw.y), max(raw.z, raw.w)));
  }
  atomicMin(&extremes[0], found.least);
  atomicMax(&extremes[1], found.greatest);
  atomicMax(&extremes[2], found.raw);
  workgroupBarrier();
  if (lane == 0u) {
    shared_extremes =
      Extremes(atomicLoad(&extremes[0]), atomicLoad(&extremes[1]), atomicLoad(&extremes[2]));
  }
  return workgroupUniformLoad(&shared_extremes);
}
