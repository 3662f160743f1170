// out = number of multiply-adds in every chain of an invocation, if factors are 1.
//
// Measures peak float32 throughput: twelve independent chains of fused multiply-adds per lane,
// enough to hide their latency, all in registers. The factors are read from memory so that no
// compiler knows they are 1; the chains start at different numbers so that none is removed as a
// copy.
//
// factors  [2]: x ← x · factors[0] + factors[1]
// out      [invocations] sum of the chains minus their initial values
override ROUNDS: u32; // each of 16 multiply-adds on 12 chains
override WORKGROUP: u32;

struct Chains {
  x: vec4f,
  y: vec4f,
  z: vec4f,
}

@group(0) @binding(0) var<storage, read> factors: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

const BEGIN = Chains(vec4f(0, 1, 2, 3), vec4f(4, 5, 6, 7), vec4f(8, 9, 10, 11));

fn once(c: Chains, a: vec4f, b: vec4f) -> Chains {
  return Chains(fma(c.x, a, b), fma(c.y, a, b), fma(c.z, a, b));
}

fn four_times(c: Chains, a: vec4f, b: vec4f) -> Chains {
  return once(once(once(once(c, a, b), a, b), a, b), a, b);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let a = vec4f(factors[0]);
  let b = vec4f(factors[1]);
  var chains = BEGIN;
  for (var i = 0u; i < ROUNDS; i++) {
    chains = four_times(four_times(four_times(four_times(chains, a, b), a, b), a, b), a, b);
  }
  let sum = (chains.x - BEGIN.x) + (chains.y - BEGIN.y) + (chains.z - BEGIN.z);
  out[id.x] = sum.x + sum.y + sum.z + sum.w;
}
