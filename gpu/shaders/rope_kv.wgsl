// Rotates queries and keys by their position (RoPE, Su et al. 2021; halves paired as Hugging Face
// does) and writes keys and values into the paged cache.
//
//   out[d]        = in[d] · cos − in[d + half] · sin     d < half
//   out[d + half] = in[d + half] · cos + in[d] · sin
//
// qkv           [n_rows][QKV_STRIDE] queries, keys, values of a row, one head after the other
// rotations     [context][HEAD_DIM / 2] (cos, sin)
// block_tables  [n_slots][MAX_BLOCKS]
// q             [n_rows][Q_STRIDE / 4] vec4
// k_pool, v_pool  see lib/paging.wgsl
// use: step
// use: kv
// use: paging
override HEAD_DIM: u32;
override N_HEADS: u32;
override QKV_STRIDE: u32;
override Q_STRIDE: u32;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> rotations: array<vec2f>;
@group(0) @binding(3) var<storage, read> block_tables: array<u32>;
@group(0) @binding(4) var<storage, read_write> q: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> k_pool: array<Cached>;
@group(0) @binding(6) var<storage, read_write> v_pool: array<Cached>;

fn rotated(head_at: u32, d: u32, position: u32) -> f32 {
  let half = HEAD_DIM / 2u;
  let rotation = rotations[position * half + d % half];
  // Choosing the place, not the value: `select` would load from both, one of them outside.
  let partner = qkv[head_at + select(d - half, d + half, d < half)];
  return fma(qkv[head_at + d], rotation.x, select(partner, -partner, d < half) * rotation.y);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let head_vec4s = HEAD_DIM / 4u;
  let head = id.x / head_vec4s; // queries first, then keys, then values
  let chunk = id.x % head_vec4s;
  let row = id.y;
  if (head >= N_HEADS + 2u * N_KV_HEADS || row >= step.n_rows) { return; }

  let position = step.rows[row].position;
  let head_at = row * QKV_STRIDE + head * HEAD_DIM;
  let d = chunk * 4u;
  if (head < N_HEADS) {
    q[row * (Q_STRIDE / 4u) + head * head_vec4s + chunk] = rotate4(head_at, d, position);
    return;
  }
  let block = block_tables[step.rows[row].slot * MAX_BLOCKS + position / BLOCK_TOKENS];
  if (head < N_HEADS + N_KV_HEADS) {
    let at = cached_at(block, position, head - N_HEADS, head_vec4s) + chunk;
    k_pool[at] = pack_cached(rotate4(head_at, d, position));
  } else {
    let at = cached_at(block, position, head - N_HEADS - N_KV_HEADS, head_vec4s) + chunk;
    let v = head_at + d;
    v_pool[at] = pack_cached(vec4f(qkv[v], qkv[v + 1u], qkv[v + 2u], qkv[v + 3u]));
  }
}

fn rotate4(head_at: u32, d: u32, position: u32) -> vec4f {
  return vec4f(rotated(head_at, d, position), rotated(head_at, d + 1u, position),
               rotated(head_at, d + 2u, position), rotated(head_at, d + 3u, position));
}
