// Reads cached keys stored as q8: chunk `at` of the pool.
// use: packed_q8
fn key_numbers(at: u32) -> Numbers {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let block = chunk * CHUNK / PACK_BLOCK;
  let scale_word_at = scales_at(t, Q8) + block / 2u;
  let absmax = half_of(k_pool[scale_word_at / 2u][scale_word_at % 2u], block);
  return from_q8(k_pool[data_at(t, Q8) / 2u + chunk], absmax);
}
