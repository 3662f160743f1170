// Bins of a row's tokens by logit, and the layout of a row of them between the kernels that sort
// tokens into bins, with many workgroups, and `sample`.
//
// A row of `bins` holds, per workgroup of tokens, how many of them fall into each bin, and then
// their masses; then per bin a BinSpan; then ids, bin by bin from the greatest logits down, four to
// a quad, each bin from a new quad on. Masses are integers, in units of the mass of a token at the
// top of the bin: their sums have the same bits in any order, so a draw does not depend on how many
// workgroups there are.
// use: sampler_extremes
// use: exponentials
override GROUPS: u32; // workgroups of a row

const N_BINS = 256u;
const NO_TOKEN = 0xffffffffu; // in a bin's last quad
const UNITS = 1048576.0; // mass of a token at the top of its bin

var<private> bin_width: f32; // a power of two
var<private> bins_per_one: f32; // its inverse

// Where a bin's tokens are, and how many there are and what mass they have.
struct BinSpan {
  first: u32, // quad of the bin's first ids, counted from the row's first
  n: u32,
  n_through: u32, // tokens of this bin and of higher ones
  mass_through: f32, // mass of these
}

// Sets `top` and `bin_width`: a 64th to a 32nd of the range of the strips' greatest logits, between
// 2^-8 and 2^-3. The last bin also holds all that is below it.
fn set_bins(ends: Extremes) {
  top = logit_of(ends.greatest);
  let range = top - logit_of(ends.least);
  let exponent = clamp((bitcast<u32>(range) >> 23u) & 0xffu, 124u, 129u) - 5u; // also if NaN
  bin_width = bitcast<f32>(exponent << 23u);
  bins_per_one = bitcast<f32>((254u - exponent) << 23u);
}

fn bins_of(keys: vec4u) -> vec4u {
  let steps = (top - logits_of(keys)) * bins_per_one; // exact
  let is_far = !(steps < vec4f(f32(N_BINS))); // also if NaN
  return min(select(vec4u(steps), vec4u(N_BINS - 1u), is_far), vec4u(N_BINS - 1u));
}

fn logit_of_bin(bin: u32) -> f32 { return top - f32(bin) * bin_width; }

// Masses of tokens of one bin each, in units of their bins; 0 for key 0.
fn units_of(keys: vec4u, bins: vec4u) -> vec4u {
  let tops = vec4f(top) - vec4f(bins) * bin_width;
  let units = min(exponentials(logits_of(keys) - tops), vec4f(1.5)) * UNITS + 0.5;
  return select(vec4u(units), vec4u(), keys == vec4u());
}

// Mass of a unit of a bin.
fn unit_mass(bin: u32) -> f32 {
  return exponentials(vec4f(-f32(bin) * bin_width)).x / UNITS;
}

fn count_quads() -> u32 { return GROUPS * N_BINS / 2u; }

fn span_quad(row: u32, bin: u32) -> u32 { return row * bins_quads() + count_quads() + bin; }

// Quad of a row's first ids.
fn ids_quad(row: u32) -> u32 { return row * bins_quads() + count_quads() + N_BINS; }

fn bins_quads() -> u32 { return count_quads() + 2u * N_BINS + token_quads(); }
