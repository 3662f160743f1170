// Reads values of signed bytes: chunk `at` of the pool.
// use: packed_q8
fn value_numbers(at: u32) -> Numbers {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let block = chunk * CHUNK / PACK_BLOCK;
  let grid = grids_at(t, Q8) + block / 2u;
  let top = half_of(v_pool[grid / 2u][grid % 2u], block);
  return from_q8(v_pool[data_at(t, Q8) / 2u + chunk], top);
}
