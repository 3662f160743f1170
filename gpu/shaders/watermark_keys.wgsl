// sort_keys of the tokens that survived the filters, with the bias of a watermark added to those of
// the greenlist; of the others 0. For rows with a watermark, between the two times that `sample`
// runs: the first finds the survivors, the second draws one of them. So the bias comes after the
// filters, as in transformers.
//
// sort_keys  [n_samples][row_quads()] vec4  see lib/sort_keys.wgsl; the fifth summary of a strip
//            becomes the mass of its tokens that are not green, relative to its greatest key
// greenlist  [n_slots][GREEN_WORDS] bit set: the token is green
// results    [n_samples][RESULT_WORDS]  at FLOOR_WORD the key that survivors reach
// use: step
// use: sort_keys
// use: strip_sums
// use: strip_summaries
override GREEN_WORDS: u32;
override RESULT_WORDS: u32;
override FLOOR_WORD: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> greenlist: array<u32>;
@group(0) @binding(2) var<storage, read> results: array<u32>;
@group(0) @binding(3) var<storage, read_write> sort_keys: array<vec4u>;

// Part of the summary of a strip as `logit_sort_keys` wrote it.
fn summary_of(row: u32, part: u32, strip: u32) -> u32 {
  var four = sort_keys[row + token_quads() + part * (strips() / 4u) + strip / 4u];
  return four[strip % 4u];
}

// Writes the keys of a strip of a sample's row; returns its summaries.
fn write_keys(sample: Sample, row: u32, floor: u32, strip: u32) -> Summary {
  var greatest = vec4u();
  var sum = Sum(LOWEST, 0.0);
  var red_mass = 0.0;
  for (var i = 0u; i < STRIP_QUADS; i++) {
    let quad = strip_quad(strip, i);
    var found = sort_keys[row + quad];
    let is_kept = found >= vec4u(floor);
    var is_green = vec4<bool>();
    if (quad / 8u < GREEN_WORDS) {
      is_green = is_kept & bits_of(greenlist[sample.slot * GREEN_WORDS + quad / 8u], quad);
    }
    var four = logits_of(found) + sample.watermark_bias;
    four = select(four, vec4f(), four == vec4f()); // −0 and 0 get the same key
    found = select(vec4u(), select(found, sort_keys_of(four), is_green), is_kept);
    let top = sum.top;
    let logits = select(vec4f(LOWEST), logits_of(found), is_kept);
    sum = add(sum, logits);
    red_mass = add_part(red_mass, top, sum, logits, is_kept & !is_green);
    greatest = max(greatest, found);
    sort_keys[row + quad] = found;
  }
  let most = max(max(greatest.x, greatest.y), max(greatest.z, greatest.w));
  let raw = vec2u(summary_of(row, 2u, strip), summary_of(row, 3u, strip));
  return Summary(vec4u(most, bitcast<u32>(sum.mass), raw), bitcast<u32>(red_mass));
}

@compute @workgroup_size(SLICE_LANES / LANE_STRIPS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  if (group.y >= step.n_samples || step.samples[group.y].watermark_bias == 0.0) { return; }
  let row = group.y * row_quads();
  let floor = results[group.y * RESULT_WORDS + FLOOR_WORD];
  var found = array<Summary, LANE_STRIPS>();
  for (var s = 0u; s < LANE_STRIPS; s++) {
    let strip = group.x * SLICE_LANES + lane * LANE_STRIPS + s;
    found[s] = write_keys(step.samples[group.y], row, floor, strip);
  }
  let first = row + token_quads() + group.x * (SLICE_LANES / 4u);
  write_summaries(first, lane, found, true);
}
