// How the rows of a weight matrix lie in memory, whatever they are stored as.
//
// A row is BLOCKS blocks of 32 weights, padded with zeros, BLOCK_PACKED loads of 16 bytes each;
// then, where the format has them, the blocks' grids (scale, minimum), GRIDS_PACKED of them in a
// load. The file that stands in for `weight` says the rest; gpu/checkpoint/packing.py writes the
// same layout.
// use: words
// use: weight
override BLOCKS: u32;

const BLOCK_FOURS = 8u;                           // fours of weights in a block
const PACKED_FOURS = BLOCK_FOURS / BLOCK_PACKED;  // fours in a load

// Loads of a row.
fn row_packed() -> u32 {
  if (GRIDS_PACKED == 0u) { return BLOCKS * BLOCK_PACKED; }
  return grid_at(BLOCKS - 1u) + 1u;
}

// Where in a row the grid of `block` is, and in which word there.
fn grid_at(block: u32) -> u32 { return BLOCKS * BLOCK_PACKED + block / max(GRIDS_PACKED, 1u); }
fn grid_word(block: u32) -> u32 {
  let grids = max(GRIDS_PACKED, 1u);
  return block % grids * 4u / grids;
}
