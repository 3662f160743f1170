// Reads values of nibbles with a minimum: chunk `at` of the pool.
// use: packed_q4
fn value_numbers(at: u32) -> Numbers {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let grid = grids_at(t, Q4) + chunk * CHUNK / PACK_BLOCK;
  let word = data_at(t, Q4) + chunk;
  return from_q4(v_pool[word / 2u][word % 2u], unpack2x16float(v_pool[grid / 2u][grid % 2u]));
}
