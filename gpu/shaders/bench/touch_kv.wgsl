// out = a value that depends on every byte of the keys and values of one sequence.
//
// Reads them all once, the least that attention must do; replaces attention in the benchmark's
// floor. Invocation i adds the words of the vec4s i, i + stride, i + 2·stride … of the sequence's
// blocks, so neighbours read neighbouring vec4s. Keys may have more vec4s than values.
//
// q               [any] read so that this waits for the matmul before it, as attention does
// k_pool, v_pool  [block][KEY_VEC4S], [block][VALUE_VEC4S] vec4 of words
// block_tables    [slot][MAX_BLOCKS]
// out             [invocations]
// use: step
override KEY_VEC4S: u32;   // vec4s of keys in one block, all heads
override VALUE_VEC4S: u32; // vec4s of values, at most KEY_VEC4S
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
  let n_blocks = last.position / BLOCK_TOKENS + 1u;
  let table = last.slot * MAX_BLOCKS;
  var sum = vec4u();
  for (var i = id.x; i < n_blocks * KEY_VEC4S; i += GROUPS * WORKGROUP) {
    sum += k_pool[block_tables[table + i / KEY_VEC4S] * KEY_VEC4S + i % KEY_VEC4S];
    if (i < n_blocks * VALUE_VEC4S) {
      sum += v_pool[block_tables[table + i / VALUE_VEC4S] * VALUE_VEC4S + i % VALUE_VEC4S];
    }
  }
  // Few bits: a denormal or NaN would slow the next matmul down.
  out[id.x] = q[0] + f32((sum.x + sum.y + sum.z + sum.w) & 255u);
}
