// Summaries of the strips of a slice, written behind a row's keys (lib/sort_keys.wgsl).
//
// A quad holds one summary of four strips. A lane has one strip, so lanes exchange them.
// Replaced by strip_summaries_own.wgsl on software devices.
const LANE_STRIPS = 1u;

struct Summary {
  parts: vec4u,
  allowed: u32, // the fifth, with a grammar
}

var<workgroup> summaries: array<u32, SLICE_LANES * 4u>; // [part][strip]

// `first`: quad of the slice's first summary; that of part p is p · strips / 4 behind it.
fn write_summaries(first: u32, lane: u32, found: array<Summary, LANE_STRIPS>, masked: bool) {
  write_parts(first, lane, 0u, found[0].parts);
  if (masked) {
    workgroupBarrier();
    write_parts(first, lane, 4u, vec4u(found[0].allowed));
  }
}

// Writes four parts from number `begin` on.
fn write_parts(first: u32, lane: u32, begin: u32, parts: vec4u) {
  for (var part = 0u; part < 4u; part++) { summaries[part * SLICE_LANES + lane] = parts[part]; }
  workgroupBarrier();
  let quads = SLICE_LANES / 4u;
  let part = begin + lane / quads;
  let four = lane * 4u;
  if (part < N_SUMMARIES) {
    sort_keys[first + part * (strips() / 4u) + lane % quads] =
      vec4u(summaries[four], summaries[four + 1u], summaries[four + 2u], summaries[four + 3u]);
  }
}
