// Scores of keys in attention.wgsl in bits: cap(q · k · scale).
// use: soft_cap

// What is added to the score of a key by its distance: nothing here.
fn position_bias(row: u32, head: u32, key: u32) -> f32 { return 0.0; }

fn scores_of(sums: vec4f, biases: vec4f) -> vec4f { return soft_cap(sums * SCALE); }
