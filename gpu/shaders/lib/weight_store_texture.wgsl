// Binding of a weight as a texture: one texel per load, one line per group of interleaved rows.
// Mesa's software device gathers texels for all lanes at once, but loads from buffers lane by lane.
// See lib/weights.wgsl.
@group(0) @binding(2) var weight: texture_storage_2d<rgba32uint, read>;

// Address of load `load` in the group of interleaved rows that `row` belongs to.
alias WeightAddress = vec2u;
fn address_of(row: u32, load: u32) -> WeightAddress { return vec2u(load, row / INTERLEAVE); }

// The load `after` loads after `place`, and one word of it.
fn load_at(place: WeightAddress, after: u32) -> vec4u {
  return textureLoad(weight, place + vec2u(after, 0u));
}
fn word_at(place: WeightAddress, after: u32, word: u32) -> u32 {
  return load_at(place, after)[word];
}
