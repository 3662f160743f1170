// One split of attention.wgsl for many rows on a GPU: a workgroup copies its keys, then its values
// into workgroup memory, dequantised once, and uses each for TILE_QUERIES queries. For SPLIT 128.
//
// Sums have the order of lib/attention_split_coalesced.wgsl, bit for bit: a score adds the chains
// of its chunks in order; weights, and weighted values, are chains of GROUP_KEYS consecutive keys,
// added in order. Here a chain adds more keys, of weight 0.
//
// A lane scores LANE_KEYS consecutive keys for LANE_QUADS quads of queries and keeps their weights
// in registers. Those of PIECE_KEYS keys at a time are shared, and every lane adds a vec4 of their
// values for ADDED_QUADS quads. Places in workgroup memory are permuted (^) so that neighbouring
// lanes store and load in different banks.
// use: fma4
// prelude: const VALUE_KEYS (keys whose values are in workgroup memory at a time: 8, 16 or 32)
const TILE_QUERIES = 32u;
const TILE_QUADS = TILE_QUERIES / 4u;
const TILE_KEYS = 128u; // SPLIT
const LANE_KEYS = 8u;
const KEY_COLUMNS = TILE_KEYS / LANE_KEYS;
const SCORE_LANES = min(LANES, 128u); // the first lanes of a workgroup; it has 64, or 128 or more
const LANE_QUADS = TILE_QUADS * KEY_COLUMNS / SCORE_LANES;
const BLOCK_VEC4S = 4u; // vec4s of keys and queries in workgroup memory at a time
const BLOCK_CHUNKS = BLOCK_VEC4S / CACHED_VEC4S;
const KEY_COPIES = (TILE_KEYS * BLOCK_CHUNKS + LANES - 1u) / LANES;
const QUERY_COPIES = (TILE_QUERIES * BLOCK_VEC4S + LANES - 1u) / LANES;
const QUERIES_AT = BLOCK_VEC4S * TILE_KEYS; // in `tile`
const GROUP_KEYS = TILE_KEYS / VALUE_GROUPS;
const GROUP_COLUMNS = GROUP_KEYS / LANE_KEYS;
const PIECE_KEYS = 32u;
const PIECE_COLUMNS = PIECE_KEYS / LANE_KEYS;
const ADDED_QUADS = 2u;
const WEIGHTED_AT = KEY_COLUMNS * TILE_QUADS; // in `weights`

var<workgroup> tile: array<vec4f, 640>; // a block of keys and of queries; then values
// of a quad of queries: maxima of lanes; sums and weighted sums of lanes; weights of a piece
var<workgroup> weights: array<vec4f, 256>;
var<workgroup> states: array<State, TILE_QUERIES>;

var<private> scores: array<array<vec4f, LANE_KEYS>, LANE_QUADS>; // then weights
var<private> keys_from: array<u32, KEY_COPIES>; // offsets of the keys that this lane copies
var<private> queries_from: array<u32, QUERY_COPIES>;

fn attend(run: SequenceRows, split: u32, lane: u32) {
  let begin = split * SPLIT;
  let end = min(run.last + 1u, begin + SPLIT);
  let seen = max(begin, run.least); // keys before it have weight 0 for all rows
  score_split(run, begin, seen, end, lane);
  weigh_split(run, begin, lane);
  add_values(run, split, seen, end, lane);
  if (lane < QUERIES && has_keys(run, lane, split)) { store_state(run, split, lane); }
}

fn state_of(i: u32) -> State { return states[i]; }

// Place of vec4 `v` of a block of key number `j` of a column.
fn key_place(v: u32, j: u32, column: u32) -> u32 {
  let moved = j % 2u * 4u + (j / 2u + v) % 2u * 2u + v / 2u;
  return v * TILE_KEYS + j * KEY_COLUMNS + (column ^ moved);
}

fn query_place(v: u32, i: u32) -> u32 { return QUERIES_AT + v * TILE_QUERIES + (i ^ (2u * v)); }

// Place of vec4 `d` of key `k`.
fn value_place(k: u32, d: u32) -> u32 {
  return k * HEAD_VEC4S + (d ^ (d / 8u % CACHED_VEC4S));
}

// Place of a quad of queries in what each column leaves.
fn column_place(column: u32, quad: u32) -> u32 {
  return column * TILE_QUADS + (quad ^ (column % TILE_QUADS));
}

// Place of a quad of queries in the weights of key `k` of a piece.
fn weight_place(k: u32, quad: u32) -> u32 {
  return k * TILE_QUADS + (quad ^ (2u * (k / LANE_KEYS)));
}

fn score_split(run: SequenceRows, begin: u32, seen: u32, end: u32, lane: u32) {
  for (var q = 0u; q < LANE_QUADS; q++) { scores[q] = array<vec4f, LANE_KEYS>(); } // unroll
  for (var h = 0u; h < KEY_COPIES; h++) { // unroll
    let key = begin + (lane + h * LANES) / BLOCK_CHUNKS;
    keys_from[h] = key_at(run, clamp(key, seen, end - 1u)) + (lane + h * LANES) % BLOCK_CHUNKS;
  }
  for (var h = 0u; h < QUERY_COPIES; h++) { // unroll
    let n = lane + h * LANES;
    queries_from[h] = query_at(run, n / BLOCK_VEC4S) + n % BLOCK_VEC4S;
  }
  for (var chunk = 0u; chunk < CHUNKS; chunk += BLOCK_CHUNKS) {
    copy_keys(chunk, lane);
    copy_queries(chunk * CACHED_VEC4S, lane);
    workgroupBarrier();
    if (lane < SCORE_LANES) {
      for (var c = 0u; c < min(BLOCK_CHUNKS, CHUNKS - chunk); c++) { add_chunk(c, lane); }
    }
    workgroupBarrier();
  }
}

// Copies a block of all keys from chunk `first` on.
fn copy_keys(first: u32, lane: u32) {
  for (var h = 0u; h < KEY_COPIES; h++) { // unroll
    let n = lane + h * LANES;
    let key = n / BLOCK_CHUNKS;
    if (key < TILE_KEYS && first + n % BLOCK_CHUNKS < CHUNKS) {
      let k = key_numbers(keys_from[h] + first);
      for (var v = 0u; v < CACHED_VEC4S; v++) { // unroll
        let d = n % BLOCK_CHUNKS * CACHED_VEC4S + v;
        tile[key_place(d, key % LANE_KEYS, key / LANE_KEYS)] = k[v];
      }
    }
  }
}

// Copies a block of all queries from vec4 `first` on.
fn copy_queries(first: u32, lane: u32) {
  for (var h = 0u; h < QUERY_COPIES; h++) { // unroll
    let n = lane + h * LANES;
    if (n < TILE_QUERIES * BLOCK_VEC4S && first + n % BLOCK_VEC4S < HEAD_VEC4S) {
      tile[query_place(n % BLOCK_VEC4S, n / BLOCK_VEC4S)] = floats_of(q[queries_from[h] + first]);
    }
  }
}

// Adds the products of chunk `c` of a block to this lane's scores.
fn add_chunk(c: u32, lane: u32) {
  let column = lane % KEY_COLUMNS;
  var k = array<Numbers, LANE_KEYS>();
  for (var j = 0u; j < LANE_KEYS; j++) { // unroll
    for (var v = 0u; v < CACHED_VEC4S; v++) { // unroll
      k[j][v] = tile[key_place(c * CACHED_VEC4S + v, j, column)];
    }
  }
  for (var quad = 0u; quad < LANE_QUADS; quad++) { // unroll
    var x = array<Numbers, 4>();
    for (var e = 0u; e < 4u; e++) { // unroll
      let i = (lane / KEY_COLUMNS * LANE_QUADS + quad) * 4u + e;
      for (var v = 0u; v < CACHED_VEC4S; v++) { // unroll
        x[e][v] = tile[query_place(c * CACHED_VEC4S + v, i)];
      }
    }
    for (var j = 0u; j < LANE_KEYS; j++) { // unroll
      var sum = vec4f();
      for (var v = 0u; v < CACHED_VEC4S; v++) { // unroll
        sum = vec4f(dot_add(x[0][v], k[j][v], sum.x), dot_add(x[1][v], k[j][v], sum.y),
                    dot_add(x[2][v], k[j][v], sum.z), dot_add(x[3][v], k[j][v], sum.w));
      }
      scores[quad][j] += sum;
    }
  }
}

// Turns scores into weights, and leaves the state of every query.
fn weigh_split(run: SequenceRows, begin: u32, lane: u32) {
  let column = lane % KEY_COLUMNS;
  if (lane < SCORE_LANES) {
    for (var quad = 0u; quad < LANE_QUADS; quad++) { // unroll
      let place = column_place(column, lane / KEY_COLUMNS * LANE_QUADS + quad);
      weights[place] = mask_scores(run, begin + column * LANE_KEYS, quad, lane);
    }
  }
  workgroupBarrier();
  if (lane < TILE_QUERIES) {
    var top = LOWEST;
    for (var c = 0u; c < KEY_COLUMNS; c++) {
      top = max(top, weights[column_place(c, lane / 4u)][lane % 4u]);
    }
    states[lane] = State(top, 0.0, 0.0);
  }
  workgroupBarrier();
  for (var c = 0u; c < GROUP_COLUMNS; c++) {
    if (lane < SCORE_LANES && column % GROUP_COLUMNS == c) { weigh_keys(c > 0u, lane); }
    workgroupBarrier();
  }
  if (lane < TILE_QUERIES) {
    for (var g = 0u; g < VALUE_GROUPS; g++) {
      let place = column_place((g + 1u) * GROUP_COLUMNS - 1u, lane / 4u);
      states[lane].sum += weights[place][lane % 4u];
      if (CAPTURE) { states[lane].weighted += weights[WEIGHTED_AT + place][lane % 4u]; }
    }
  }
  workgroupBarrier();
}

// Scales and masks the scores of a quad of queries; `first`: position of this lane's first key.
// Returns their maxima. The masks also keep a compiler from fusing the scale with a later
// subtraction, which would have other bits.
fn mask_scores(run: SequenceRows, first: u32, quad: u32, lane: u32) -> vec4f {
  var least = vec4u();
  var n_keys = vec4u();
  let query = (lane / KEY_COLUMNS * LANE_QUADS + quad) * 4u;
  for (var e = 0u; e < 4u; e++) { // unroll
    let row = row_of(run, query + e);
    least[e] = first_seen(row);
    n_keys[e] = select(0u, last_seen(row) + 1u, (query + e) / HEADS < run.n);
  }
  var top = vec4f(LOWEST);
  for (var j = 0u; j < LANE_KEYS; j++) { // unroll
    let key = vec4u(first + j);
    let is_seen = (key < n_keys) & (key >= least) & queries_unmasked(run, query, first + j);
    let score = scores_of(scores[quad][j], query_biases(run, query, first + j));
    let s = select(vec4f(LOWEST), score, is_seen);
    scores[quad][j] = s;
    top = max(top, s);
  }
  return top;
}

// Which of four queries from `query` on may attend to a key.
fn queries_unmasked(run: SequenceRows, query: u32, key: u32) -> vec4<bool> {
  var found = vec4<bool>(true);
  if (!MASKED) { return found; }
  for (var e = 0u; e < 4u; e++) { found[e] = are_unmasked(run, query + e, vec4u(key)).x; } // unroll
  return found;
}

// What is added to the scores of a key for four queries from `query` on.
fn query_biases(run: SequenceRows, query: u32, key: u32) -> vec4f {
  var biases = vec4f();
  for (var e = 0u; e < 4u; e++) { // unroll
    biases[e] = position_bias(row_of(run, query + e), head_of(run, query + e), key);
  }
  return biases;
}

// Turns this lane's scores into weights and leaves their sums, `on`: added to those of the column
// before.
fn weigh_keys(on: bool, lane: u32) {
  let column = lane % KEY_COLUMNS;
  for (var quad = 0u; quad < LANE_QUADS; quad++) { // unroll
    let of_tile = lane / KEY_COLUMNS * LANE_QUADS + quad;
    let i = of_tile * 4u;
    let top = vec4f(states[i].maximum, states[i + 1u].maximum,
                    states[i + 2u].maximum, states[i + 3u].maximum);
    var sum = vec4f();
    var weighted = vec4f();
    if (on) {
      let before = column_place(column - 1u, of_tile);
      sum = weights[before];
      if (CAPTURE) { weighted = weights[WEIGHTED_AT + before]; }
    }
    for (var j = 0u; j < LANE_KEYS; j++) { // unroll
      let s = scores[quad][j];
      let below = s - top;
      // A query may see no key of the split; then all differences are 0 and weights would be 1.
      let weight = select(exp2(below), vec4f(), s == vec4f(LOWEST));
      scores[quad][j] = weight;
      sum += weight;
      if (CAPTURE) { weighted = fma(weight, below, weighted); }
    }
    let place = column_place(column, of_tile);
    weights[place] = sum;
    if (CAPTURE) { weights[WEIGHTED_AT + place] = weighted; }
  }
}

struct ValueSums { // of this lane's vec4 of dimensions
  chains: array<array<vec4f, 4>, ADDED_QUADS>, // of a group of keys
  totals: array<array<vec4f, 4>, ADDED_QUADS>,
}

// Adds the weighted values of the split and stores them.
fn add_values(run: SequenceRows, split: u32, seen: u32, end: u32, lane: u32) {
  var sums = ValueSums();
  let begin = split * SPLIT;
  let quad = lane / HEAD_VEC4S * ADDED_QUADS;
  for (var piece = (seen - begin) / PIECE_KEYS; begin + piece * PIECE_KEYS < end; piece++) {
    share_weights(piece, lane);
    for (var k = 0u; k < PIECE_KEYS; k += VALUE_KEYS) {
      copy_values(run, begin + piece * PIECE_KEYS + k, seen, end, lane);
      workgroupBarrier();
      if (quad < TILE_QUADS) { add_value_tile(k, quad, lane % HEAD_VEC4S, &sums); }
      workgroupBarrier();
    }
  }
  if (quad < TILE_QUADS) {
    for (var f = 0u; f < ADDED_QUADS; f++) { // unroll
      for (var e = 0u; e < 4u; e++) { // unroll
        let i = (quad + f) * 4u + e;
        if (has_keys(run, i, split)) {
          store_values(run, split, i, lane % HEAD_VEC4S, sums.totals[f][e]);
        }
      }
    }
  }
  workgroupBarrier();
}

fn share_weights(piece: u32, lane: u32) {
  let column = lane % KEY_COLUMNS;
  if (lane < SCORE_LANES && column / PIECE_COLUMNS == piece) {
    for (var j = 0u; j < LANE_KEYS; j++) { // unroll
      let k = column % PIECE_COLUMNS * LANE_KEYS + j;
      for (var f = 0u; f < LANE_QUADS; f++) { // unroll
        weights[weight_place(k, lane / KEY_COLUMNS * LANE_QUADS + f)] = scores[f][j];
      }
    }
  }
}

// Copies the values of VALUE_KEYS keys from position `first` on. Those that no row sees have
// weight 0, but memory there may hold NaN.
fn copy_values(run: SequenceRows, first: u32, seen: u32, end: u32, lane: u32) {
  for (var n = lane; n < VALUE_KEYS * CHUNKS; n += LANES) {
    let k = n / CHUNKS;
    var x = Numbers();
    if (first + k >= seen && first + k < end) {
      x = value_numbers(key_at(run, first + k) + n % CHUNKS);
    }
    for (var v = 0u; v < CACHED_VEC4S; v++) { // unroll
      tile[value_place(k, n % CHUNKS * CACHED_VEC4S + v)] = x[v];
    }
  }
}

// Adds VALUE_KEYS keys from key `first` of a piece on, for the queries from `quad` on.
fn add_value_tile(first: u32, quad: u32, d: u32, sums: ptr<function, ValueSums>) {
  for (var some = 0u; some < VALUE_KEYS; some += LANE_KEYS) {
    for (var own = 0u; own < LANE_KEYS; own++) {
      let k = some + own;
      let x = tile[value_place(k, d)];
      for (var f = 0u; f < ADDED_QUADS; f++) { // unroll
        let w = weights[weight_place(first + k, quad + f)];
        for (var e = 0u; e < 4u; e++) { // unroll
          (*sums).chains[f][e] = fma(vec4f(w[e]), x, (*sums).chains[f][e]);
        }
      }
    }
    if ((first + some + LANE_KEYS) % GROUP_KEYS == 0u) {
      for (var f = 0u; f < ADDED_QUADS; f++) { // unroll
        for (var e = 0u; e < 4u; e++) { // unroll
          (*sums).totals[f][e] += (*sums).chains[f][e];
          (*sums).chains[f][e] = vec4f();
        }
      }
    }
  }
}
