// Reads cached keys stored as f32 or f16: load `at` of the pool.
alias KeyLoad = Cached;

fn load_key(at: u32) -> KeyLoad { return k_pool[at]; }
fn key_of(load: KeyLoad, at: u32) -> Numbers { return unpack_cached(load); }
fn key_numbers(at: u32) -> Numbers { return key_of(load_key(at), at); }
