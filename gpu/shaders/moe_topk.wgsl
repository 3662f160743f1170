// expert_ids = the EXPERTS_PER_TOKEN largest of each row's N_EXPERTS logits, largest first, the
// smaller id first among equals; gates = their softmax weights.
//
//   gate = exp(logit) / Σ exp(logits of all)   NORM_TOPK_PROB: Σ over the chosen only, the softmax
//                                              over them
//
// KEEPS: experts whose factor of the row's slot is 0 are switched off, as if the model did not have
// them: they are not chosen and have no part in the sum. At least EXPERTS_PER_TOKEN must be on.
//
// The rank of an expert is the number of experts ahead of it, so the choice is exact whatever the
// order of the lanes. Sums go by rising id, with NORM_TOPK_PROB by rising rank.
//
// logits      [rows][STRIDE]; columns past N_EXPERTS are not read
// keeps       [n_slots][N_EXPERTS], 0 or 1
// expert_ids  [rows][EXPERTS_PER_TOKEN]
// gates       [rows][EXPERTS_PER_TOKEN]
// use: step
override N_EXPERTS: u32;
override EXPERTS_PER_TOKEN: u32;
override STRIDE: u32;
override NORM_TOPK_PROB: bool;
override KEEPS: bool;
const LANES = 64u;
const LOWEST = -3.4028234e38; // of f32

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> keeps: array<f32>; // optional
@group(0) @binding(3) var<storage, read_write> expert_ids: array<u32>;
@group(0) @binding(4) var<storage, read_write> gates: array<f32>;

var<workgroup> scores: array<f32, N_EXPERTS>; // the logits
var<workgroup> masses: array<f32, N_EXPERTS>; // exp(logit − the largest)
var<workgroup> taken: array<f32, EXPERTS_PER_TOKEN>; // masses of the chosen experts
var<workgroup> off: array<u32, N_EXPERTS>; // 1: switched off

fn is_nan(v: f32) -> bool { return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u; }

// Number of experts ahead of this one, of those that are on. A NaN is behind every number, so that
// no two experts have one rank. A chosen NaN makes the gates NaN, which the engine reports.
fn rank_of(expert: u32) -> u32 {
  let mine = scores[expert];
  var place = 0u;
  for (var e = 0u; e < N_EXPERTS; e++) {
    let other = scores[e];
    let tie = other == mine || (is_nan(other) && is_nan(mine));
    let ahead = other > mine || (is_nan(mine) && !is_nan(other));
    place += u32(off[e] == 0u && (ahead || (tie && e < expert)));
  }
  return place;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= step.n_rows) { return; }
  for (var e = lane; e < N_EXPERTS; e += LANES) {
    scores[e] = logits[row * STRIDE + e];
    off[e] = 0u;
    if (KEEPS) { off[e] = u32(keeps[step.rows[row].slot * N_EXPERTS + e] == 0.0); }
  }
  workgroupBarrier();
  var top = LOWEST;
  for (var e = 0u; e < N_EXPERTS; e++) { top = select(max(top, scores[e]), top, off[e] == 1u); }
  for (var e = lane; e < N_EXPERTS; e += LANES) {
    masses[e] = 0.0;
    if (off[e] == 0u) { masses[e] = exp(scores[e] - top); }
  }
  workgroupBarrier();

  var sum = 0.0;
  for (var e = 0u; e < N_EXPERTS; e++) { sum += masses[e]; }
  for (var e = lane; e < N_EXPERTS; e += LANES) {
    let place = rank_of(e);
    if (off[e] == 0u && place < EXPERTS_PER_TOKEN) {
      expert_ids[row * EXPERTS_PER_TOKEN + place] = e;
      taken[place] = masses[e];
    }
  }
  workgroupBarrier();
  if (NORM_TOPK_PROB) {
    sum = 0.0;
    for (var k = 0u; k < EXPERTS_PER_TOKEN; k++) { sum += taken[k]; }
  }
  for (var k = lane; k < EXPERTS_PER_TOKEN; k += LANES) {
    gates[row * EXPERTS_PER_TOKEN + k] = taken[k] / sum;
  }
}
