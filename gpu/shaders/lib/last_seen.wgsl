// Position of the last key that a row of attention.wgsl sees: its own.
fn last_seen(row: u32) -> u32 { return step.rows[row].position; }
