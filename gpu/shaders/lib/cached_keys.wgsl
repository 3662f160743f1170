// Reads cached keys stored as f32 or f16: load `at` of the pool.
fn key_numbers(at: u32) -> Numbers { return unpack_cached(k_pool[at]); }
