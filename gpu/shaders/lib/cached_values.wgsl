// Reads values that are stored as floats: load `at` of the pool.
fn value_numbers(at: u32) -> Numbers { return unpack_cached(v_pool[at]); }
