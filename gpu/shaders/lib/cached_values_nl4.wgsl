// Reads cached values stored as nl4: chunk `at` of the pool.
// use: packed_nl4
struct ValueLoad {
  data: u32,
  scales: u32, // of two blocks
}

fn load_value(at: u32) -> ValueLoad {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let scale_word_at = scales_at(t, NL4) + chunk * CHUNK / PACK_BLOCK / 2u;
  let word = data_at(t, NL4) + chunk;
  return ValueLoad(v_pool[word / 2u][word % 2u], v_pool[scale_word_at / 2u][scale_word_at % 2u]);
}

fn value_of(load: ValueLoad, at: u32) -> Numbers {
  return from_nl4(load.data, half_of(load.scales, at % HEAD_CHUNKS * CHUNK / PACK_BLOCK));
}

fn value_numbers(at: u32) -> Numbers { return value_of(load_value(at), at); }
