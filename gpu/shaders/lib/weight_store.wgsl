// Binding of a weight as a buffer, read sixteen bytes at a time; see lib/weights.wgsl. Replaced by
// weight_store_texture.wgsl where loads from buffers are slow.
// use: words
@group(0) @binding(2) var<storage, read> weight: array<Load16>;

// Address of load `load` in the group of interleaved rows that `row` belongs to.
alias WeightAddress = u32;
fn address_of(row: u32, load: u32) -> WeightAddress {
  return row / INTERLEAVE * INTERLEAVE * row_loads() + load;
}

// The load `after` loads after `place`, and one word of it.
fn load_at(place: WeightAddress, after: u32) -> vec4u { return words_of(weight[place + after]); }
fn word_at(place: WeightAddress, after: u32, word: u32) -> u32 {
  return word_in(weight[place + after][word / ELEMENT_WORDS], word);
}
