// out = sum of the words that an invocation reads: every word of a buffer once, all invocations
// together.
//
// Measures the bandwidth of reading, which is what decoding does. Neighbouring invocations read
// neighbouring vec4s, and each has LOADS of them under way at a time, so that latency is hidden.
//
// words  [ROUNDS][LOADS][invocations] vec4 of words
// out    [invocations]
override ROUNDS: u32;
override WORKGROUP: u32;

const LOADS = 8u;

@group(0) @binding(0) var<storage, read> words: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WORKGROUP)
fn main(
  @builtin(global_invocation_id) id: vec3u,
  @builtin(num_workgroups) groups: vec3u,
) {
  let n = groups.x * WORKGROUP;
  var at = id.x;
  var sum = vec4u();
  for (var i = 0u; i < ROUNDS; i++) {
    let a = words[at];
    let b = words[at + n];
    let c = words[at + 2u * n];
    let d = words[at + 3u * n];
    let e = words[at + 4u * n];
    let f = words[at + 5u * n];
    let g = words[at + 6u * n];
    let h = words[at + 7u * n];
    sum += ((a + b) + (c + d)) + ((e + f) + (g + h));
    at += LOADS * n;
  }
  out[id.x] = sum.x + sum.y + sum.z + sum.w;
}
