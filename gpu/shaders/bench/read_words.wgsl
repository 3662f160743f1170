// out = sum of the words that an invocation reads: ROUNDS times LOADS vec4s, STRIDE apart.
//
// Measures the bandwidth of reading, which is what decoding does. Neighbouring invocations read
// neighbouring vec4s, and each has LOADS of them under way at a time, so that latency is hidden. If
// STRIDE is the number of invocations and MASK has all bits, every word of a buffer is read once. A
// smaller MASK keeps the reads inside the first MASK + 1 vec4s, which a cache may hold.
//
// words  vec4 of words
// out    [invocations]
override ROUNDS: u32;
override STRIDE: u32;
override MASK: u32;
override WORKGROUP: u32;

const LOADS = 8u;

@group(0) @binding(0) var<storage, read> words: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  var at = id.x;
  var sum = vec4u();
  for (var i = 0u; i < ROUNDS; i++) {
    let a = words[at & MASK];
    let b = words[(at + STRIDE) & MASK];
    let c = words[(at + 2u * STRIDE) & MASK];
    let d = words[(at + 3u * STRIDE) & MASK];
    let e = words[(at + 4u * STRIDE) & MASK];
    let f = words[(at + 5u * STRIDE) & MASK];
    let g = words[(at + 6u * STRIDE) & MASK];
    let h = words[(at + 7u * STRIDE) & MASK];
    sum += ((a + b) + (c + d)) + ((e + f) + (g + h));
    at += LOADS * STRIDE;
  }
  out[id.x] = sum.x + sum.y + sum.z + sum.w;
}
