// Reads cached keys stored as nl4: chunk `at` of the pool.
// use: packed_nl4
struct KeyLoad {
  data: u32,
  scales: u32, // of two blocks
}

fn load_key(at: u32) -> KeyLoad {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let scale_word_at = scales_at(t, NL4) + chunk * CHUNK / PACK_BLOCK / 2u;
  let word = data_at(t, NL4) + chunk;
  return KeyLoad(k_pool[word / 2u][word % 2u], k_pool[scale_word_at / 2u][scale_word_at % 2u]);
}

fn key_of(load: KeyLoad, at: u32) -> Numbers {
  return from_nl4(load.data, half_of(load.scales, at % HEAD_CHUNKS * CHUNK / PACK_BLOCK));
}

fn key_numbers(at: u32) -> Numbers { return key_of(load_key(at), at); }
