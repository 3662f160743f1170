// Reads cached keys stored as q8: chunk `at` of the pool.
// use: packed_q8
struct KeyLoad {
  data: vec2u,
  scales: u32, // of two blocks
}

fn load_key(at: u32) -> KeyLoad {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let scale_word_at = scales_at(t, Q8) + chunk * CHUNK / PACK_BLOCK / 2u;
  return KeyLoad(k_pool[data_at(t, Q8) / 2u + chunk],
                 k_pool[scale_word_at / 2u][scale_word_at % 2u]);
}

fn key_of(load: KeyLoad, at: u32) -> Numbers {
  return from_q8(load.data, half_of(load.scales, at % HEAD_CHUNKS * CHUNK / PACK_BLOCK));
}

fn key_numbers(at: u32) -> Numbers { return key_of(load_key(at), at); }
