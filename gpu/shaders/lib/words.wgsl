// Sixteen bytes of a buffer at a time. words_64.wgsl stands in for this where loads are dear.
alias Sixteen = vec4u;
const ELEMENT_WORDS = 1u; // of an element of Sixteen

fn words_of(sixteen: Sixteen) -> vec4u { return sixteen; }
fn floats_of(sixteen: Sixteen) -> vec4f { return bitcast<vec4f>(sixteen); }
fn sixteen_of(floats: vec4f) -> Sixteen { return bitcast<vec4u>(floats); }

// Word `i` of sixteen bytes, from their element i / ELEMENT_WORDS.
fn word_in(element: u32, i: u32) -> u32 { return element; }
