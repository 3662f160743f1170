// Greenlist of a watermark with the seeding scheme selfhash: which of a sample's N_RANKED most
// likely tokens that survived the filters are green, each by a seed of its own (Kirchenbauer et al.
// 2023, algorithm 3; transformers' `WatermarkLogitsProcessor`).
//
//   seed   the smallest of key · h(t) · h(token) as signed numbers of 64 bits, t: the token and
//          those before it
//   green  the first n_green of the vocabulary, shuffled with this seed
//
// The shuffle is Fisher–Yates with MT19937: step i swaps the places i and i + draw mod (VOCAB − i).
// A workgroup follows one token through it, STATE steps at a time. The token moves at its place's
// own step, and is among the first for good when an earlier step swaps its place.
//
// ranked     [n_samples][N_RANKED] ids, see sample.wgsl
// hashes     [n_slots][VOCAB] h
// products   [n_slots][PRODUCTS] numbers of 64 bits, low word first: n_green, the key, then
//            key · h(t) of each token before
// greenlist  [n_slots][GREEN_WORDS] bit set: the token is green; all 0 before
// use: step
// use: philox
// use: ranked
override VOCAB: u32;
override GREEN_WORDS: u32;
override PRODUCTS: u32;
override LANES: u32 = 64u;

const STATE = 624u; // words of MT19937
const MIDDLE = 397u;
const NO_STEP = 0xffffffffu;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> ranked: array<u32>;
@group(0) @binding(2) var<storage, read> hashes: array<u32>;
@group(0) @binding(3) var<storage, read> products: array<vec2u>;
@group(0) @binding(4) var<storage, read_write> greenlist: array<atomic<u32>>;

var<workgroup> words: array<u32, 2u * STATE>; // of the state, before and after a twist
var<workgroup> partners: array<u32, STATE>; // places with which the steps swap
var<workgroup> least_step: atomic<u32>;
var<workgroup> shared_move: vec2u; // step, place of the token after it

// a · b mod 2⁶⁴
fn times(a: vec2u, b: u32) -> vec2u { return vec2u(a.x * b, a.y * b + multiply_high(a.x, b)); }

// True if a is less than b, as signed numbers.
fn is_less(a: vec2u, b: vec2u) -> bool {
  return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}

// Low 32 bits of the seed modulo 2⁶⁴ − 1, as Python has it: not negative.
fn seed_of(sample: Sample, id: u32) -> u32 {
  let at = sample.slot * PRODUCTS;
  let own = hashes[sample.slot * VOCAB + id];
  var least = times(times(products[at + 1u], own), own);
  for (var i = 1u; i < sample.n_hashed; i++) {
    let product = times(products[at + 1u + i], own);
    if (is_less(product, least)) { least = product; }
  }
  return least.x - (least.y >> 31u);
}

fn twisted(high: u32, low: u32, other: u32) -> u32 {
  let y = (high & 0x80000000u) | (low & 0x7fffffffu);
  return other ^ (y >> 1u) ^ select(0u, 0x9908b0dfu, (y & 1u) == 1u);
}

fn tempered(word: u32) -> u32 {
  var y = word ^ (word >> 11u);
  y ^= (y << 7u) & 0x9d2c5680u;
  y ^= (y << 15u) & 0xefc60000u;
  return y ^ (y >> 18u);
}

// Makes the state `number` of the other one. A word depends on one that is made MIDDLE words
// later, or STATE − MIDDLE earlier, so there are three parts.
fn twist(number: u32, lane: u32) {
  let now = number * STATE;
  let before = STATE - now;
  for (var k = lane; k < STATE - MIDDLE; k += LANES) {
    words[now + k] = twisted(words[before + k], words[before + k + 1u], words[before + k + MIDDLE]);
  }
  workgroupBarrier();
  for (var k = STATE - MIDDLE + lane; k < 2u * (STATE - MIDDLE); k += LANES) {
    let other = words[now + k + MIDDLE - STATE];
    words[now + k] = twisted(words[before + k], words[before + k + 1u], other);
  }
  workgroupBarrier();
  for (var k = 2u * (STATE - MIDDLE) + lane; k < STATE; k += LANES) {
    var low = words[now];
    if (k + 1u < STATE) { low = words[before + k + 1u]; }
    words[now + k] = twisted(words[before + k], low, words[now + k + MIDDLE - STATE]);
  }
  workgroupBarrier();
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  if (group.y >= step.n_samples || step.samples[group.y].n_hashed == 0u) { return; }
  let sample = step.samples[group.y];
  let id = ranked[group.y * N_RANKED + group.x];
  if (id >= VOCAB) { return; }
  let n_green = products[sample.slot * PRODUCTS].x;
  if (lane == 0u) {
    var word = seed_of(sample, id);
    words[STATE] = word;
    for (var i = 1u; i < STATE; i++) {
      word = 1812433253u * (word ^ (word >> 30u)) + i;
      words[STATE + i] = word;
    }
  }
  workgroupBarrier();

  var place = id;
  var next = 0u; // step that may move it next
  var is_green = false;
  var now = 0u;
  for (var first = 0u; first < n_green && !is_green; first += STATE) {
    twist(now, lane);
    for (var k = lane; k < STATE; k += LANES) {
      let i = first + k;
      let draw = tempered(words[now * STATE + k]);
      partners[k] = select(NO_STEP, i + draw % max(1u, VOCAB - i), i < n_green);
    }
    now = 1u - now;
    while (!is_green) {
      if (lane == 0u) { atomicStore(&least_step, NO_STEP); }
      workgroupBarrier();
      for (var k = lane; k < STATE; k += LANES) {
        let i = first + k;
        let moves = i == place || partners[k] == place;
        if (i >= next && i < n_green && moves) { atomicMin(&least_step, i); }
      }
      workgroupBarrier();
      if (lane == 0u) {
        let i = atomicLoad(&least_step);
        shared_move = vec2u(i, i);
        if (i == place && i != NO_STEP) { shared_move.y = partners[i - first]; }
      }
      let moved = workgroupUniformLoad(&shared_move);
      if (moved.x == NO_STEP) { break; }
      place = moved.y;
      next = moved.x + 1u;
      is_green = place < next;
    }
  }
  if (is_green && lane == 0u) {
    atomicOr(&greenlist[sample.slot * GREEN_WORDS + id / 32u], 1u << (id % 32u));
  }
}
