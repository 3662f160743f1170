// Extremes and total masses of a row from the summaries of its strips, without reading its keys.
// use: sampler_rank
var<workgroup> extremes: array<atomic<u32>, 3>;
var<workgroup> shared_extremes: Extremes;

struct Extremes {
  least: u32,    // smallest of the strips' greatest keys
  greatest: u32, // greatest of all keys
  raw: u32,      // key of the largest raw logit
}

fn find_extremes(summaries: KeySlice) -> Extremes {
  if (lane == 0u) {
    atomicStore(&extremes[0], NO_SORT_KEY);
    atomicStore(&extremes[1], 1u);
    atomicStore(&extremes[2], 1u);
  }
  workgroupBarrier();
  var found = Extremes(NO_SORT_KEY, 1u, 1u);
  for (var i = lane; i < summaries.n; i += LANES) {
    let four = sort_keys[summaries.first + i];
    let low = select(four, vec4u(NO_SORT_KEY), four == vec4u());
    let raw = sort_keys_of(bitcast<vec4f>(sort_keys[summaries.first + 2u * summaries.n + i]));
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

// (mass of all tokens, Σ exp(raw logit − raw_top), the part of this that allowed tokens have).
fn total_masses(summaries: KeySlice, raw_top: f32, masked: bool) -> vec3f {
  var sums = vec3f();
  for (var i = lane; i < summaries.n; i += LANES) {
    let at = summaries.first + i;
    let greatest = sort_keys[at];
    let masses = bitcast<vec4f>(sort_keys[at + summaries.n]);
    let raw_tops = bitcast<vec4f>(sort_keys[at + 2u * summaries.n]);
    let raw_masses = bitcast<vec4f>(sort_keys[at + 3u * summaries.n]);
    sums.x += dot(select(masses_of(greatest), vec4f(), greatest == vec4u()), masses);
    sums.y += dot(exponentials(raw_tops - raw_top), raw_masses);
    if (masked) {
      let allowed = bitcast<vec4f>(sort_keys[at + 4u * summaries.n]);
      sums.z += dot(exponentials(raw_tops - raw_top), allowed);
    }
  }
  return sum_lanes(vec4f(sums, 0.0)).xyz;
}
