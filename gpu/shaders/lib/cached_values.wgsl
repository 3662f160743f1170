// Reads cached values stored as f32 or f16: load `at` of the pool.
fn value_numbers(at: u32) -> Numbers { return unpack_cached(v_pool[at]); }
