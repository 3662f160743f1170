// Summaries of the strips of a slice, where a lane has the four strips of a quad.
//
// There is no barrier and no workgroup memory, which browsers set to zero: on a software device
// each group of four lanes would write all of it. Replaces strip_summaries.wgsl.
const LANE_STRIPS = 4u;

struct Summary {
  parts: vec4u,
  allowed: u32,
}

fn write_summaries(first: u32, lane: u32, found: array<Summary, LANE_STRIPS>, masked: bool) {
  let a = found[0];
  let b = found[1];
  let c = found[2];
  let d = found[3];
  let at = first + lane;
  let stride = strips() / 4u;
  sort_keys[at] = vec4u(a.parts.x, b.parts.x, c.parts.x, d.parts.x);
  sort_keys[at + stride] = vec4u(a.parts.y, b.parts.y, c.parts.y, d.parts.y);
  sort_keys[at + 2u * stride] = vec4u(a.parts.z, b.parts.z, c.parts.z, d.parts.z);
  sort_keys[at + 3u * stride] = vec4u(a.parts.w, b.parts.w, c.parts.w, d.parts.w);
  if (masked) { sort_keys[at + 4u * stride] = vec4u(a.allowed, b.allowed, c.allowed, d.allowed); }
}
