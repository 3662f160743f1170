// What a weight is bound as: a buffer, read sixteen bytes at a time. weight_store_texture.wgsl
// stands in for this where loads of a buffer are dear. See lib/weights.wgsl.
// use: words
@group(0) @binding(2) var<storage, read> weight: array<Sixteen>;

// Load number `load` of the rows that lie side by side with `row`.
alias Place = u32;
fn place_of(row: u32, load: u32) -> Place { return row / ABREAST * ABREAST * row_packed() + load; }

// The load so many after a place, and one word of it.
fn load_at(place: Place, after: u32) -> vec4u { return words_of(weight[place + after]); }
fn word_at(place: Place, after: u32, word: u32) -> u32 {
  return word_in(weight[place + after][word / ELEMENT_WORDS], word);
}
