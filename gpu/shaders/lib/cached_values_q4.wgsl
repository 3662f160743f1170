// Reads cached values stored as q4: chunk `at` of the pool.
// use: packed_q4
fn value_numbers(at: u32) -> Numbers {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let scale_word_at = scales_at(t, Q4) + chunk * CHUNK / PACK_BLOCK;
  let word = data_at(t, Q4) + chunk;
  let scale_min = unpack2x16float(v_pool[scale_word_at / 2u][scale_word_at % 2u]);
  return from_q4(v_pool[word / 2u][word % 2u], scale_min);
}
