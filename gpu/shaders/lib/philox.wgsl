// Philox-4x32-10: a counter-based random generator (Salmon, Moraes, Dror, Shaw 2011, "Parallel
// random numbers: as easy as 1, 2, 3"). The same key and counter always give the same number.
const PHILOX_M0 = 0xd2511f53u;
const PHILOX_M1 = 0xcd9e8d57u;
const PHILOX_W0 = 0x9e3779b9u;
const PHILOX_W1 = 0xbb67ae85u;

// High word of a 32 × 32 bit multiplication.
fn multiply_high(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let middle = ah * bl + ((al * bl) >> 16u);
  let carry = (middle & 0xffffu) + al * bh;
  return ah * bh + (middle >> 16u) + (carry >> 16u);
}

fn philox(key: vec2u, counter: vec4u) -> vec4u {
  var k = key;
  var c = counter;
  for (var round = 0u; round < 10u; round++) {
    c = vec4u(multiply_high(PHILOX_M1, c.z) ^ c.y ^ k.x, PHILOX_M1 * c.z,
              multiply_high(PHILOX_M0, c.x) ^ c.w ^ k.y, PHILOX_M0 * c.x);
    k += vec2u(PHILOX_W0, PHILOX_W1);
  }
  return c;
}

// Uniform in [0, 1), a multiple of 2^-24.
fn uniform_draw(seed: vec2u, index: u32) -> f32 {
  return f32(philox(seed, vec4u(index, 0u, 0u, 0u)).x >> 8u) * 0x1p-24f;
}
