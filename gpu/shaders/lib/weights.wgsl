// How the rows of a weight matrix lie in memory, whatever they are stored as.
//
// A row is BLOCKS blocks of 32 weights, padded with zeros, BLOCK_PACKED loads of 16 bytes each;
// then, where the format has them, the blocks' grids (scale, minimum), GRIDS_PACKED of them in a
// load. The file that stands in for `weight` says the rest; gpu/checkpoint/packing.py writes the
// same layout.
//
// ABREAST rows lie side by side (gpu/checkpoint/abreast.py): the first block of each of them, then
// the second of each, …, then in the same order the grids of those blocks. weight_store.wgsl says
// what they are bound as.
// use: weight_store
// use: weight
override BLOCKS: u32;
override ABREAST: u32 = 1u;

const BLOCK_FOURS = 8u;                           // fours of weights in a block
const PACKED_FOURS = BLOCK_FOURS / BLOCK_PACKED;  // fours in a load
const LOAD_GRIDS = max(GRIDS_PACKED, 1u);         // grids in a load, for formats that have none too

// Loads of a row.
fn row_packed() -> u32 {
  if (GRIDS_PACKED == 0u) { return BLOCKS * BLOCK_PACKED; }
  return BLOCKS * BLOCK_PACKED + (BLOCKS - 1u) / LOAD_GRIDS + 1u;
}

// Where the blocks of a row begin, and how far from there `block` is.
fn blocks_at(row: u32) -> Place { return place_of(row, row % ABREAST * BLOCK_PACKED); }
fn to_block(block: u32) -> u32 { return block * ABREAST * BLOCK_PACKED; }

// Where the grids of the rows abreast begin that `row` is one of, which of them is that of `block`
// in row number `side` of these, how far from there it lies, and in which word of the load.
fn grids_at(row: u32) -> Place { return place_of(row, ABREAST * BLOCKS * BLOCK_PACKED); }
fn grid_index(block: u32, side: u32) -> u32 { return block * ABREAST + side; }
fn to_grid(index: u32) -> u32 { return index / LOAD_GRIDS; }
fn grid_word(index: u32) -> u32 { return index % LOAD_GRIDS * 4u / LOAD_GRIDS; }
