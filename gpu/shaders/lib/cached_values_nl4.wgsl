// Reads values of signed levels: chunk `at` of the pool.
// use: packed_n4
fn value_numbers(at: u32) -> Numbers {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let block = chunk * CHUNK / PACK_BLOCK;
  let grid = grids_at(t, N4) + block / 2u;
  let word = data_at(t, N4) + chunk;
  let top = half_of(v_pool[grid / 2u][grid % 2u], block);
  return from_n4(v_pool[word / 2u][word % 2u], top);
}
