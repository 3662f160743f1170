// Sixteen bytes of a buffer per load. Replaced by words_64.wgsl where loads are slow.
alias Load16 = vec4u;
const ELEMENT_WORDS = 1u; // words in an element of Load16

fn words_of(load: Load16) -> vec4u { return load; }
fn floats_of(load: Load16) -> vec4f { return bitcast<vec4f>(load); }
fn load16_of(floats: vec4f) -> Load16 { return bitcast<vec4u>(floats); }

// Word `i` of a Load16, from its element i / ELEMENT_WORDS.
fn word_in(element: u32, i: u32) -> u32 { return element; }
