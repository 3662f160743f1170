// A tile of x · weightᵀ like lib/matmul_tile.wgsl, for few rows on a GPU: neighbouring lanes load
// neighbouring bytes, and all lanes of a workgroup share the rows of x in workgroup memory.
//
// The blocks of k are taken in rounds of SPLIT_K / 4, one by each quad of chains; a quad's four
// chains of fused multiply-adds take a quarter of the block each. Four chains are added as
// (a + b) + (c + d), then the quads in order. lib/matmul_tile_shared.wgsl adds in the same order: a
// row's bits depend on SPLIT_K alone, not on the lanes that have the chains.
//
// A lane has LANE_QUARTERS neighbouring chains of each of LANE_QUADS quads, so that it loads up to
// 16 bytes of weights at a time: a slot. The slots of ROUNDS rounds are all under way, and each is
// filled again as soon as it is used; so is the x of the next rounds. Slots and halves of a quarter
// are calls with constants, for devices whose loops are not unrolled: drivers keep arrays that a
// long loop indexes in memory.
//
// In workgroup memory, vec4 v of block b of a row is at 8b + (v ^ b % 8): what neighbouring lanes
// read then lies in different banks.
//
// x, weight, gain  see lib/matmul_tile.wgsl
// use: words
// use: columns
// use: block_quarter
// use: fma4
// use: scale_rows
// prelude: const TILE_M, const TILE_N, const SPLIT_K, const COLUMNS, const LANE_QUADS,
//          const LANE_QUARTERS, const ROUNDS, const SUMS_N, const TAIL_ROWS

@group(0) @binding(1) var<storage, read> x: array<Load16>;

const QUADS = SPLIT_K / 4u;
const SLOT_BLOCKS = QUADS / LANE_QUADS;   // blocks that the lanes of a tile take at a time
const BLOCK_LANES = 4u / LANE_QUARTERS;   // lanes that share a block
const SLOTS = LANE_QUADS * ROUNDS;        // of a column, at most 8
const TILE_BLOCKS = QUADS * ROUNDS;       // blocks of x in workgroup memory
const ROW_VEC4S = TILE_BLOCKS * BLOCK_VEC4S;
const CHAINS = LANE_QUADS * LANE_QUARTERS; // of an output that a lane has
const COPIES = (TILE_M * SPLIT_K + WORKGROUP - 1u) / WORKGROUP; // chains whose x a lane copies
const PARTS = TAIL_ROWS * TILE_N * LANE_QUADS; // numbers of a lane that are added at a time
const PART_VEC4S = (PARTS + 3u) / 4u;
const PART_STRIDE = WORKGROUP + WORKGROUP / 8u; // vec4s of all lanes, with a gap after each eight
const SHARED_VEC4S = max(TILE_M * ROW_VEC4S, PART_VEC4S * PART_STRIDE);

var<workgroup> shared_vec4s: array<vec4f, SHARED_VEC4S>; // x, then what is left to add
var<private> packed: array<array<vec4u, LANE_LOADS>, SLOTS * TILE_N>;
var<private> scale_words: array<u32, SLOTS * TILE_N>;
var<private> chains: array<f32, TILE_M * TILE_N * CHAINS>;
var<private> sums: array<f32, SUMS_N>;
var<private> x_from: array<u32, COPIES>; // the quarters that this lane copies, in block 0
var<private> copied: array<array<vec4f, 2>, COPIES * ROUNDS>;
var<private> gains: array<array<vec4f, 2>, COPIES * ROUNDS>;
var<private> squares: array<f32, COPIES>; // Σ x² of the chains that this lane copies

// Same contract as in lib/matmul_tile.wgsl, for every lane.
fn matmul_tile(first_m: u32, first_n: u32, n_rows: u32, lane: u32) {
  begin_columns(first_n);
  load_slots(lane);
  for (var i = 0u; i < COPIES; i++) { // unroll
    let copy = copy_of(i, lane);
    let row = source_row(min(first_m + copy / SPLIT_K, n_rows - 1u));
    x_from[i] = row * BLOCKS * BLOCK_VEC4S + copy % 4u * 2u;
  }
  load_x(0u, lane);
  for (var first = 0u; first < BLOCKS; first += TILE_BLOCKS) {
    workgroupBarrier();
    store_x(first, lane);
    workgroupBarrier();
    if (first + TILE_BLOCKS < BLOCKS) { load_x(first + TILE_BLOCKS, lane); }
    use_slots(first, lane);
  }
  var totals = array<f32, SUMS_M>();
  if (NORM) { totals[0] = total_squares(lane); }
  for (var row = 0u; row < TILE_M; row += TAIL_ROWS) { add_chains(row, lane); } // unroll
  begin_scales(first_m + lane % TILE_M, n_rows, totals);
}

// Row and chain number `i` of those whose x this lane copies, as row · SPLIT_K + chain.
fn copy_of(i: u32, lane: u32) -> u32 { return min(lane + i * WORKGROUP, TILE_M * SPLIT_K - 1u); }

// Loads what this lane copies of the blocks from `first` on. Blocks past the last repeat it.
fn load_x(first: u32, lane: u32) {
  for (var i = 0u; i < COPIES; i++) { // unroll
    let chain = copy_of(i, lane) % SPLIT_K;
    for (var r = 0u; r < ROUNDS; r++) { // unroll
      let block_at = min(first + r * QUADS + chain / 4u, BLOCKS - 1u) * BLOCK_VEC4S;
      let at = x_from[i] + block_at;
      copied[i * ROUNDS + r] = array(floats_of(x[at]), floats_of(x[at + 1u]));
      if (NORM) {
        let gain_at = block_at + chain % 4u * 2u;
        gains[i * ROUNDS + r] = array(floats_of(gain[gain_at]), floats_of(gain[gain_at + 1u]));
      }
    }
  }
}

// Stores what `load_x` loaded, times the gain.
fn store_x(first: u32, lane: u32) {
  for (var i = 0u; i < COPIES; i++) { // unroll
    let copy = copy_of(i, lane);
    let chain = copy % SPLIT_K;
    for (var r = 0u; r < ROUNDS; r++) { // unroll
      let block = r * QUADS + chain / 4u;
      var halves = copied[i * ROUNDS + r];
      if (NORM) {
        let added = dot_add(halves[1], halves[1], dot_add(halves[0], halves[0], squares[i]));
        squares[i] = select(squares[i], added, first + block < BLOCKS);
        halves[0] *= gains[i * ROUNDS + r][0];
        halves[1] *= gains[i * ROUNDS + r][1];
      }
      if (lane + i * WORKGROUP < TILE_M * SPLIT_K) {
        let row_at = copy / SPLIT_K * ROW_VEC4S;
        shared_vec4s[row_at + x_place(block, chain % 4u * 2u)] = halves[0];
        shared_vec4s[row_at + x_place(block, chain % 4u * 2u + 1u)] = halves[1];
      }
    }
  }
}

fn x_place(block: u32, vec4_index: u32) -> u32 {
  return block * BLOCK_VEC4S + (vec4_index ^ (block % BLOCK_VEC4S));
}

// The first block of the lane in slot `slot`, among those that its workgroup takes at a time.
fn slot_block(slot: u32, lane: u32) -> u32 {
  return slot * SLOT_BLOCKS + lane % LANES / BLOCK_LANES;
}
fn first_quarter(lane: u32) -> u32 { return lane % BLOCK_LANES * LANE_QUARTERS; }

fn load_slots(lane: u32) {
  load_slot(0u, 0u, lane);
  if (SLOTS > 1u) { load_slot(1u, 0u, lane); }
  if (SLOTS > 2u) { load_slot(2u, 0u, lane); }
  if (SLOTS > 3u) { load_slot(3u, 0u, lane); }
  if (SLOTS > 4u) { load_slot(4u, 0u, lane); }
  if (SLOTS > 5u) { load_slot(5u, 0u, lane); }
  if (SLOTS > 6u) { load_slot(6u, 0u, lane); }
  if (SLOTS > 7u) { load_slot(7u, 0u, lane); }
}

fn use_slots(first: u32, lane: u32) {
  use_slot(0u, first, lane);
  if (SLOTS > 1u) { use_slot(1u, first, lane); }
  if (SLOTS > 2u) { use_slot(2u, first, lane); }
  if (SLOTS > 3u) { use_slot(3u, first, lane); }
  if (SLOTS > 4u) { use_slot(4u, first, lane); }
  if (SLOTS > 5u) { use_slot(5u, first, lane); }
  if (SLOTS > 6u) { use_slot(6u, first, lane); }
  if (SLOTS > 7u) { use_slot(7u, first, lane); }
}

// Loads weights of every column for slot `slot` of the blocks from `first` on. Blocks past the last
// repeat it.
fn load_slot(slot: u32, first: u32, lane: u32) {
  let block = min(first + slot_block(slot, lane), BLOCKS - 1u);
  for (var j = 0u; j < TILE_N; j++) { // unroll
    let s = slot * TILE_N + j;
    packed[s] = load_quarters(packed_at[j], block_offset(block), first_quarter(lane));
    if (SCALES_PER_LOAD > 0u) { scale_words[s] = load_scale(j, block); }
  }
}

// Adds the products with slot `slot` of the blocks from `first` on, and fills it again.
fn use_slot(slot: u32, first: u32, lane: u32) {
  let block = first + slot_block(slot, lane);
  if (block < BLOCKS) {
    for (var j = 0u; j < TILE_N; j++) { // unroll
      scale_min[j] = scale_min_of(scale_words[slot * TILE_N + j], column_scale_index(j, block));
    }
    add_quarter(slot, 0u, lane);
    if (LANE_QUARTERS > 1u) { add_quarter(slot, 1u, lane); }
    if (LANE_QUARTERS > 2u) {
      add_quarter(slot, 2u, lane);
      add_quarter(slot, 3u, lane);
    }
  }
  if (first + TILE_BLOCKS < BLOCKS) { load_slot(slot, first + TILE_BLOCKS, lane); }
}

// Adds the products with quarter number `quarter` of a lane.
fn add_quarter(slot: u32, quarter: u32, lane: u32) {
  add_half(slot, quarter, 0u, lane);
  add_half(slot, quarter, 1u, lane);
}

fn add_half(slot: u32, quarter: u32, half: u32, lane: u32) {
  var w = array<vec4f, TILE_N>();
  for (var j = 0u; j < TILE_N; j++) { // unroll
    w[j] = quarter_vec4(packed[slot * TILE_N + j], 2u * quarter + half, scale_min[j]);
  }
  let vec4_index = 2u * (first_quarter(lane) + quarter) + half;
  let at = x_place(slot_block(slot, lane), vec4_index);
  for (var i = 0u; i < TILE_M; i++) { // unroll
    let four = shared_vec4s[at + i * ROW_VEC4S];
    for (var j = 0u; j < TILE_N; j++) { // unroll
      let s = ((i * TILE_N + j) * LANE_QUADS + slot % LANE_QUADS) * LANE_QUARTERS + quarter;
      chains[s] = dot_add(four, w[j], chains[s]);
    }
  }
}

// Adds the chains of TAIL_ROWS rows from `first` on. Lane l gets columns of row l % TILE_M.
fn add_chains(first: u32, lane: u32) {
  // A copy to index: drivers keep arrays indexed by a variable in memory.
  var found = chains;
  let mine = lane + lane / 8u;
  workgroupBarrier();
  for (var v = 0u; v < PART_VEC4S; v++) { // unroll
    var four = vec4f();
    for (var e = 0u; e < 4u; e++) { // unroll
      let part = min(v * 4u + e, PARTS - 1u);
      let s = (first * TILE_N * LANE_QUADS + part) * LANE_QUARTERS;
      four[e] = found[s];
      if (LANE_QUARTERS == 2u) { four[e] = found[s] + found[s + 1u]; }
      if (LANE_QUARTERS == 4u) {
        four[e] = (found[s] + found[s + 1u]) + (found[s + 2u] + found[s + 3u]);
      }
    }
    shared_vec4s[v * PART_STRIDE + mine] = four;
  }
  workgroupBarrier();
  if (BLOCK_LANES > 1u) {
    for (var o = lane; o < WORKGROUP / BLOCK_LANES * PART_VEC4S; o += WORKGROUP) {
      let at = o / (WORKGROUP / BLOCK_LANES) * PART_STRIDE;
      let l = o % (WORKGROUP / BLOCK_LANES) * BLOCK_LANES;
      let begin = at + l + l / 8u; // the lanes of a block lie side by side
      var four = shared_vec4s[begin] + shared_vec4s[begin + 1u];
      if (BLOCK_LANES == 4u) { four += shared_vec4s[begin + 2u] + shared_vec4s[begin + 3u]; }
      shared_vec4s[begin] = four;
    }
    workgroupBarrier();
  }
  let row = lane % TILE_M - first;
  if (has_sums(lane) && row < TAIL_ROWS) {
    for (var j = 0u; j < SUMS_N; j++) { // unroll
      sums[j] = add_quads(row, lane / TILE_M * SUMS_N + j);
    }
  }
}

// Adds the quads of an output: of a row of those in workgroup memory, and of a column of the
// workgroup.
fn add_quads(row: u32, column: u32) -> f32 {
  let part = (row * TILE_N + column % TILE_N) * LANE_QUADS;
  var total = 0.0;
  for (var c = 0u; c < LANE_QUADS; c++) { // unroll
    let at = (part + c) / 4u * PART_STRIDE;
    for (var q = 0u; q < SLOT_BLOCKS; q++) { // unroll
      let l = column / TILE_N * LANES + q * BLOCK_LANES;
      total += shared_vec4s[at + l + l / 8u][(part + c) % 4u];
    }
  }
  return total;
}

// Σ x² of row lane % TILE_M of the tile.
fn total_squares(lane: u32) -> f32 {
  workgroupBarrier();
  for (var i = 0u; i < COPIES; i++) { // unroll
    if (lane + i * WORKGROUP < TILE_M * SPLIT_K) {
      shared_vec4s[lane + i * WORKGROUP] = vec4f(squares[i], 0.0, 0.0, 0.0);
    }
  }
  workgroupBarrier();
  for (var o = lane; o < TILE_M * QUADS; o += WORKGROUP) {
    let at = 4u * o;
    shared_vec4s[at] = (shared_vec4s[at] + shared_vec4s[at + 1u])
                     + (shared_vec4s[at + 2u] + shared_vec4s[at + 3u]);
  }
  workgroupBarrier();
  var total = 0.0;
  for (var q = 0u; q < QUADS; q++) { // unroll
    total += shared_vec4s[lane % TILE_M * SPLIT_K + 4u * q].x;
  }
  return total;
}
