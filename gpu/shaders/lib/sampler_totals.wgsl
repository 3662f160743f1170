// Total masses of a row from the summaries of its strips, without reading its keys.
// use: sampler_rank
// use: sampler_extremes
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
