// Reads cached values stored as f32 or f16: load `at` of the pool.
alias ValueLoad = Cached;

fn load_value(at: u32) -> ValueLoad { return v_pool[at]; }
fn value_of(load: ValueLoad, at: u32) -> Numbers { return unpack_cached(load); }
fn value_numbers(at: u32) -> Numbers { return value_of(load_value(at), at); }
