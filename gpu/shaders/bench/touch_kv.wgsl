// out = something that depends on every byte of the keys and values of one sequence.
//
// What attention must at least do: read them all once. The benchmark's floor stands it in for
// attention. Invocation i adds up the words of the vec4s i, i + stride, i + 2·stride … of the
// sequence's blocks, so neighbours read neighbouring vec4s.
//
// q               [any] read so that this waits for the product before it, as attention does
// k_pool, v_pool  [block][BLOCK_VEC4S] vec4 of words
// block_tables    [slot][MAX_BLOCKS]
// out             [invocations]
// use: step
override BLOCK_VEC4S: u32; // of keys in one block, all heads; as many of values
override MAX_BLOCKS: u32;
override BLOCK_TOKENS: u32;
override GROUPS: u32; // workgroups
override WORKGROUP: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k_pool: array<vec4u>;
@group(0) @binding(3) var<storage, read> v_pool: array<vec4u>;
@group(0) @binding(4) var<storage, read> block_tables: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let last = step.rows[step.n_rows - 1u];
  let n_vec4s = (last.position / BLOCK_TOKENS + 1u) * BLOCK_VEC4S;
  let table = last.slot * MAX_BLOCKS;
  var sum = vec4u();
  for (var i = id.x; i < n_vec4s; i += GROUPS * WORKGROUP) {
    let at = block_tables[table + i / BLOCK_VEC4S] * BLOCK_VEC4S + i % BLOCK_VEC4S;
    sum += k_pool[at] + v_pool[at];
  }
  // Few bits, so that no float that comes of them slows the products down.
  out[id.x] = q[0] + f32((sum.x + sum.y + sum.z + sum.w) & 255u);
}
