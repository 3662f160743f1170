// Leaves the partial results of a split of attention.wgsl for attention_merge.wgsl.
fn leave_values(at: u32, total: vec4f) { out[at] = load16_of(total); }

fn leave_state(at: u32, state: State) {
  heads_out[3u * at] = state.maximum;
  heads_out[3u * at + 1u] = state.sum;
  heads_out[3u * at + 2u] = state.weighted;
}

fn merge_splits(run: SequenceRows, part: u32, lane: u32) {}
