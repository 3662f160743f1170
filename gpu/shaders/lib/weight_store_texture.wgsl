// What a weight is bound as: a texture, a texel for each load, one line of them for the rows that
// lie side by side. Mesa's software device gathers texels for all lanes at once; numbers of a
// buffer it loads for one lane after the other. See lib/weights.wgsl.
@group(0) @binding(2) var weight: texture_storage_2d<rgba32uint, read>;

// Load number `load` of the rows that lie side by side with `row`.
alias Place = vec2u;
fn place_of(row: u32, load: u32) -> Place { return vec2u(load, row / ABREAST); }

// The load so many after a place, and one word of it.
fn load_at(place: Place, after: u32) -> vec4u {
  return textureLoad(weight, place + vec2u(after, 0u));
}
fn word_at(place: Place, after: u32, word: u32) -> u32 { return load_at(place, after)[word]; }
