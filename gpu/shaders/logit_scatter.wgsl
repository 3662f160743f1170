// bins = the ids of a row's tokens, bin by bin, and for each bin where they are and how many tokens
// and how much mass there are down to it.
//
// Every workgroup adds up the counts of logit_histogram again, which tells where its own tokens go,
// and then writes their ids. The order of the ids of one bin and workgroup is left open.
//
// sort_keys  [n_samples][row_quads()] vec4  see lib/sort_keys.wgsl
// bins       [n_samples][bins_quads()] vec4  see lib/sampler_bins.wgsl
// use: step
// use: sampler_bins
override GROUP_QUADS: u32; // quads of tokens of a workgroup

// Of a bin and those above it: quads of ids, tokens, mass.
struct BinTotal {
  n_quads: u32,
  n: u32,
  mass: f32,
}

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> sort_keys: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> bins: array<u32>;

var<workgroup> totals: array<BinTotal, N_BINS>;
var<workgroup> next: array<atomic<u32>, N_BINS>; // place in the row's ids of a bin's next token

// Words of a bin of four workgroups, loaded before the first is used.
fn four_of_groups(first: u32, group: u32) -> vec4u {
  let groups = vec4u(group) + vec4u(0u, 1u, 2u, 3u);
  let at = first + min(groups, vec4u(GROUPS - 1u)) * (2u * N_BINS);
  let four = vec4u(bins[at.x], bins[at.y], bins[at.z], bins[at.w]);
  return select(vec4u(), four, groups < vec4u(GROUPS));
}

fn sum(four: vec4u) -> u32 { return four.x + four.y + four.z + four.w; }

fn mass_of_groups(first: u32) -> f32 {
  var low = 0u; // of a number of 64 bits
  var high = 0u;
  for (var g = 0u; g < GROUPS; g += 4u) {
    let four = four_of_groups(first, g);
    for (var j = 0u; j < 4u; j++) {
      low += four[j];
      high += u32(low < four[j]);
    }
  }
  return f32(high) * 0x1p32f + f32(low);
}

fn add(a: BinTotal, b: BinTotal) -> BinTotal {
  return BinTotal(a.n_quads + b.n_quads, a.n + b.n, a.mass + b.mass);
}

@compute @workgroup_size(N_BINS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
  if (group.y >= step.n_samples || step.samples[group.y].temperature == 0.0) { return; }
  lane = local;
  set_bins(find_extremes(group.y));

  // A lane has a bin.
  let first_count = group.y * bins_quads() * 4u + lane;
  var n = 0u;
  var n_before = 0u; // of workgroups before this one
  for (var g = 0u; g < GROUPS; g += 4u) {
    let four = four_of_groups(first_count, g);
    let is_before = vec4u(g, g + 1u, g + 2u, g + 3u) < vec4u(group.x);
    n += sum(four);
    n_before += sum(select(vec4u(), four, is_before));
  }
  var mass = 0.0; // that of the first workgroup is written
  if (group.x == 0u) { mass = mass_of_groups(first_count + N_BINS) * unit_mass(lane); }
  let own = BinTotal((n + 3u) / 4u, n, mass);
  totals[lane] = own;
  workgroupBarrier();
  for (var distance = 1u; distance < N_BINS; distance *= 2u) {
    var before = BinTotal();
    if (lane >= distance) { before = totals[lane - distance]; }
    workgroupBarrier();
    if (lane >= distance) { totals[lane] = add(before, totals[lane]); }
    workgroupBarrier();
  }
  let through = totals[lane];
  let first = (through.n_quads - own.n_quads) * 4u;
  atomicStore(&next[lane], first + n_before);
  let ids = ids_quad(group.y) * 4u;
  if (group.x == 0u) {
    let at = span_quad(group.y, lane) * 4u;
    bins[at] = first / 4u;
    bins[at + 1u] = n;
    bins[at + 2u] = through.n;
    bins[at + 3u] = bitcast<u32>(through.mass);
    for (var i = n; i < own.n_quads * 4u; i++) { bins[ids + first + i] = NO_TOKEN; }
  }
  workgroupBarrier();

  let row = group.y * row_quads();
  let end = min((group.x + 1u) * GROUP_QUADS, token_quads());
  for (var quad = group.x * GROUP_QUADS + lane; quad < end; quad += N_BINS) {
    let keys = sort_keys[row + quad];
    let found = bins_of(keys);
    for (var j = 0u; j < 4u; j++) {
      if (keys[j] != 0u) { bins[ids + atomicAdd(&next[found[j]], 1u)] = quad * 4u + j; }
    }
  }
}
