// Position of the last key that a row of attention.wgsl sees in an encoder: the end of its text, or
// WINDOW - 1 keys after its own.
//
// text_ends  [n_rows] last position of the row's text
@group(0) @binding(10) var<storage, read> text_ends: array<u32>;

fn last_seen(row: u32) -> u32 {
  let end = text_ends[row];
  return select(end, min(end, step.rows[row].position + WINDOW - 1u), WINDOW > 0u);
}
