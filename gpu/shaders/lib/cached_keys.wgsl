// Reads keys that are stored as floats: load `at` of the pool.
fn key_numbers(at: u32) -> Numbers { return unpack_cached(k_pool[at]); }
