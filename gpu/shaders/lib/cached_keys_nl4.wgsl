// Reads cached keys stored as nl4: chunk `at` of the pool.
// use: packed_nl4
fn key_numbers(at: u32) -> Numbers {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let block = chunk * CHUNK / PACK_BLOCK;
  let scale_word_at = scales_at(t, NL4) + block / 2u;
  let word = data_at(t, NL4) + chunk;
  let absmax = half_of(k_pool[scale_word_at / 2u][scale_word_at % 2u], block);
  return from_nl4(k_pool[word / 2u][word % 2u], absmax);
}
