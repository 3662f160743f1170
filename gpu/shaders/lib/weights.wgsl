// Layout of the rows of a weight matrix, whatever their format.
//
// A row is BLOCKS blocks of 32 weights, padded with zeros, BLOCK_LOADS loads of 16 bytes each;
// then, if the format has them, the blocks' scales (and mins), SCALES_PER_LOAD of them in a load.
// The variant of `weight` defines the format; gpu/checkpoint/packing.py writes the same layout.
//
// INTERLEAVE rows are interleaved (gpu/checkpoint/interleaved.py): the first block of each of them,
// then the second of each, …, then in the same order the scales of those blocks. weight_store.wgsl
// defines the binding.
// use: weight_store
// use: weight
override BLOCKS: u32;
override INTERLEAVE: u32 = 1u;

const BLOCK_VEC4S = 8u;                           // vec4s of weights in a block
const LOAD_VEC4S = BLOCK_VEC4S / BLOCK_LOADS;  // vec4s in a load
const SCALES_DIVISOR = max(SCALES_PER_LOAD, 1u); // 1 for formats without scales

// Number of loads of a row.
fn row_loads() -> u32 {
  if (SCALES_PER_LOAD == 0u) { return BLOCKS * BLOCK_LOADS; }
  return BLOCKS * BLOCK_LOADS + (BLOCKS - 1u) / SCALES_DIVISOR + 1u;
}

// Address of a row's first block, and offset of `block` from there.
fn blocks_at(row: u32) -> WeightAddress { return address_of(row, row % INTERLEAVE * BLOCK_LOADS); }
fn block_offset(block: u32) -> u32 { return block * INTERLEAVE * BLOCK_LOADS; }

// Address of the scales of a group of interleaved rows; index of the scale of (block, row) among
// them; offset of its load; its word in the load.
fn scales_at(row: u32) -> WeightAddress {
  return address_of(row, INTERLEAVE * BLOCKS * BLOCK_LOADS);
}
fn scale_index(block: u32, interleaved_row: u32) -> u32 {
  return block * INTERLEAVE + interleaved_row;
}
fn scale_offset(index: u32) -> u32 { return index / SCALES_DIVISOR; }
fn scale_word(index: u32) -> u32 { return index % SCALES_DIVISOR * 4u / SCALES_DIVISOR; }
