// Gives each row to PER_TOKEN of N_EXPERTS experts: those of its largest logits, the largest first;
// of equal logits that of the smaller id.
//
//   gate = exp(logit) / Σ exp(logits of all)         NORMALISED: Σ of those chosen alone, which is
//                                                    the softmax over them
//
// An expert's place is the number of experts ahead of it, so the choice is exact whatever the order
// in which lanes work. Sums go by rising id, those of NORMALISED by rising place.
//
// logits   [rows][STRIDE]; columns past N_EXPERTS are left alone
// chosen   [rows][PER_TOKEN] ids
// gates    [rows][PER_TOKEN]
// use: step
override N_EXPERTS: u32;
override PER_TOKEN: u32;
override STRIDE: u32;
override NORMALISED: bool;
const LANES = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(3) var<storage, read_write> gates: array<f32>;

var<workgroup> scores: array<f32, N_EXPERTS>; // the logits
var<workgroup> masses: array<f32, N_EXPERTS>; // exp(logit − the largest)
var<workgroup> taken: array<f32, PER_TOKEN>; // masses of those chosen

// How many experts are ahead of this one.
fn place_of(expert: u32) -> u32 {
  let mine = scores[expert];
  var place = 0u;
  for (var e = 0u; e < N_EXPERTS; e++) {
    place += u32(scores[e] > mine || (scores[e] == mine && e < expert));
  }
  return place;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= step.n_rows) { return; }
  for (var e = lane; e < N_EXPERTS; e += LANES) { scores[e] = logits[row * STRIDE + e]; }
  workgroupBarrier();
  var top = scores[0];
  for (var e = 1u; e < N_EXPERTS; e++) { top = max(top, scores[e]); }
  for (var e = lane; e < N_EXPERTS; e += LANES) { masses[e] = exp(scores[e] - top); }
  workgroupBarrier();

  var sum = 0.0;
  for (var e = 0u; e < N_EXPERTS; e++) { sum += masses[e]; }
  for (var e = lane; e < N_EXPERTS; e += LANES) {
    let place = place_of(e);
    if (place < PER_TOKEN) {
      chosen[row * PER_TOKEN + place] = e;
      taken[place] = masses[e];
    }
  }
  workgroupBarrier();
  if (NORMALISED) {
    sum = 0.0;
    for (var k = 0u; k < PER_TOKEN; k++) { sum += taken[k]; }
  }
  for (var k = lane; k < PER_TOKEN; k += LANES) { gates[row * PER_TOKEN + k] = taken[k] / sum; }
}
