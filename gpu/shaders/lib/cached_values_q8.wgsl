// Reads cached values stored as q8: chunk `at` of the pool.
// use: packed_q8
struct ValueLoad {
  data: vec2u,
  scales: u32, // of two blocks
}

fn load_value(at: u32) -> ValueLoad {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let scale_word_at = scales_at(t, Q8) + chunk * CHUNK / PACK_BLOCK / 2u;
  return ValueLoad(v_pool[data_at(t, Q8) / 2u + chunk],
                   v_pool[scale_word_at / 2u][scale_word_at % 2u]);
}

fn value_of(load: ValueLoad, at: u32) -> Numbers {
  return from_q8(load.data, half_of(load.scales, at % HEAD_CHUNKS * CHUNK / PACK_BLOCK));
}

fn value_numbers(at: u32) -> Numbers { return value_of(load_value(at), at); }
