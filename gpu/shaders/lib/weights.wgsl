// How the rows of a weight matrix lie in memory, whatever they are stored as.
//
// A row is BLOCKS blocks of 32 weights, padded with zeros, BLOCK_PACKED loads of 16 bytes each;
// then, where the format has them, the blocks' grids (scale, minimum), GRIDS_PACKED of them in a
// load. The file that stands in for `weight` says the rest; gpu/checkpoint/packing.py writes the
// same layout.
//
// ABREAST rows lie side by side (gpu/checkpoint/abreast.py): the first block of each of them, then
// the second of each, …, then their grids, a load of each in turn. weight_store.wgsl says what they
// are bound as.
// use: weight_store
// use: weight
override BLOCKS: u32;
override ABREAST: u32 = 1u;

const BLOCK_FOURS = 8u;                           // fours of weights in a block
const PACKED_FOURS = BLOCK_FOURS / BLOCK_PACKED;  // fours in a load

// Loads of a row.
fn row_packed() -> u32 {
  if (GRIDS_PACKED == 0u) { return BLOCKS * BLOCK_PACKED; }
  return BLOCKS * BLOCK_PACKED + (BLOCKS - 1u) / max(GRIDS_PACKED, 1u) + 1u;
}

// Where the blocks of a row begin, and how far from there `block` is.
fn blocks_at(row: u32) -> Place { return place_of(row, row % ABREAST * BLOCK_PACKED); }
fn to_block(block: u32) -> u32 { return block * ABREAST * BLOCK_PACKED; }

// Where the grids of a row begin, how far from there that of `block` is, and in which word there.
fn grids_at(row: u32) -> Place {
  return place_of(row, ABREAST * BLOCKS * BLOCK_PACKED + row % ABREAST);
}
fn to_grid(block: u32) -> u32 { return block / max(GRIDS_PACKED, 1u) * ABREAST; }
fn grid_word(block: u32) -> u32 {
  let grids = max(GRIDS_PACKED, 1u);
  return block % grids * 4u / grids;
}
