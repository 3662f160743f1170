// bins = how many tokens of each workgroup fall into each bin of logits, and their mass; then
// logit_scatter lists the tokens by bin.
//
// The first two of the three kernels that sample a large vocabulary on a GPU, where one workgroup
// would take long to walk over it. A greedy row needs no bins.
//
// sort_keys  [n_samples][row_quads()] vec4  see lib/sort_keys.wgsl
// bins       [n_samples][bins_quads()] vec4  see lib/sampler_bins.wgsl
// use: step
// use: sampler_bins
override GROUP_QUADS: u32; // quads of tokens of a workgroup

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> sort_keys: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> bins: array<u32>;

var<workgroup> counts: array<atomic<u32>, N_BINS>;
var<workgroup> masses: array<atomic<u32>, N_BINS>; // GROUP_QUADS is so small that they fit

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
  if (group.y >= step.n_samples || step.samples[group.y].temperature == 0.0) { return; }
  lane = local;
  set_bins(find_extremes(group.y));
  for (var bin = lane; bin < N_BINS; bin += LANES) {
    atomicStore(&counts[bin], 0u);
    atomicStore(&masses[bin], 0u);
  }
  workgroupBarrier();
  let row = group.y * row_quads();
  let end = min((group.x + 1u) * GROUP_QUADS, token_quads());
  for (var quad = group.x * GROUP_QUADS + lane; quad < end; quad += LANES) {
    let keys = sort_keys[row + quad];
    let found = bins_of(keys);
    let units = units_of(keys, found);
    for (var j = 0u; j < 4u; j++) {
      if (keys[j] == 0u) { continue; }
      atomicAdd(&counts[found[j]], 1u);
      atomicAdd(&masses[found[j]], units[j]);
    }
  }
  workgroupBarrier();
  let first = group.y * bins_quads() * 4u + group.x * N_BINS * 2u;
  for (var bin = lane; bin < N_BINS; bin += LANES) {
    bins[first + bin] = atomicLoad(&counts[bin]);
    bins[first + N_BINS + bin] = atomicLoad(&masses[bin]);
  }
}
