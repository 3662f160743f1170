// Reads cached values stored as q4: chunk `at` of the pool.
// use: packed_q4
struct ValueLoad {
  data: u32,
  scale_min: u32,
}

fn load_value(at: u32) -> ValueLoad {
  let t = at / HEAD_CHUNKS;
  let chunk = at % HEAD_CHUNKS;
  let scale_word_at = scales_at(t, Q4) + chunk * CHUNK / PACK_BLOCK;
  let word = data_at(t, Q4) + chunk;
  return ValueLoad(v_pool[word / 2u][word % 2u], v_pool[scale_word_at / 2u][scale_word_at % 2u]);
}

fn value_of(load: ValueLoad, at: u32) -> Numbers {
  return from_q4(load.data, unpack2x16float(load.scale_min));
}

fn value_numbers(at: u32) -> Numbers { return value_of(load_value(at), at); }
