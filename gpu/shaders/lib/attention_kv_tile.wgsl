// One round of attention.wgsl: 4 · LANES keys for QUERIES queries. A lane scores four keys, then
// adds values for one chunk of dimensions, of every PARTS-th four keys. Arrays are nested in
// fours, as the loops over them are, so that drivers unroll the loops and keep the arrays in
// registers.
// use: four

struct Run { // rows of one sequence
  first: u32, // row
  n: u32,
  last: u32,  // largest position
  least: u32, // smallest position
  table: u32, // where the sequence's entries begin in block_tables
  head: u32,  // first head
  n_heads: u32,
  kv_head: u32,
}

struct Sums { // of a split so far, for this lane's chunk of dimensions
  tops: array<array<f32, 4>, FOURS>,
  sums: array<array<f32, 4>, FOURS>,
  weighted: array<array<f32, 4>, FOURS>, // see State
  values: array<array<Numbers, 4>, FOURS>,
}

// Where the key of a position begins in the pools.
fn key_at(run: Run, position: u32) -> u32 {
  let block = block_tables[run.table + position / BLOCK_TOKENS];
  return cached_at(block, position, run.kv_head, CHUNKS);
}

fn score_keys(run: Run, key: u32, at: ptr<function, Places>) -> array<array<vec4f, 4>, FOURS> {
  var scores = array<array<vec4f, 4>, FOURS>();
  for (var f = 0u; f < FOURS; f++) {
    for (var j = 0u; j < 4u; j++) { scores[f][j] = vec4f(); }
  }
  let k_at = key_at(run, min(key, run.last / 4u * 4u));
  for (var c = 0u; c < CHUNKS; c++) {
    var k = array<Numbers, 4>();
    for (var i = 0u; i < 4u; i++) { k[i] = key_numbers(k_at + i * CHUNKS + c); }
    for (var v = 0u; v < CACHED_VEC4S; v++) {
      for (var f = 0u; f < FOURS; f++) {
        var queries = four_queries(at, f, c * CACHED_VEC4S + v);
        for (var j = 0u; j < 4u; j++) {
          let s = scores[f][j];
          scores[f][j] = vec4f(
            dot_add(queries[j], k[0][v], s.x), dot_add(queries[j], k[1][v], s.y),
            dot_add(queries[j], k[2][v], s.z), dot_add(queries[j], k[3][v], s.w));
        }
      }
    }
  }
  return scores;
}

// Which of four keys a query sees that has `n` keys up to its own position.
fn seen(keys: vec4u, n: u32) -> vec4<bool> {
  if (WINDOW == 0u) { return keys < vec4u(n); }
  return (keys < vec4u(n)) & (keys + WINDOW >= vec4u(n));
}

// Scores this lane's keys, leaves their shares, moves the tops.
fn weigh_round(run: Run, first: u32, lane: u32, at: ptr<function, Places>,
               n_keys: ptr<function, Keys>,
               before: ptr<function, Sums>) {
  let key = first + 4u * lane;
  let keys = vec4u(key, key + 1u, key + 2u, key + 3u);
  var scores = score_keys(run, key, at);
  for (var f = 0u; f < FOURS; f++) {
    for (var j = 0u; j < 4u; j++) {
      let s = select(vec4f(LOWEST), soft_capped(scores[f][j] * SCALE), seen(keys, (*n_keys)[f][j]));
      scores[f][j] = s;
      leave_top(f * 4u + j, lane, max(max(s.x, s.y), max(s.z, s.w)));
    }
  }
  workgroupBarrier();
  gather_tops(lane);
  for (var f = 0u; f < FOURS; f++) {
    let tops = four_tops(f, lane);
    for (var j = 0u; j < 4u; j++) {
      let top = max((*before).tops[f][j], tops[j]);
      lower(before, f, j, top);
      let below = scores[f][j] - top;
      var share = exp2(below);
      // A query may see no key of a round, and then all are as good as the best.
      if (WINDOW > 0u) { share = select(vec4f(), share, seen(keys, (*n_keys)[f][j])); }
      let place = (f * 4u + j) * LANES + lane;
      shares[place] = sixteen_of(share);
      if (CAPTURE) { terms[place] = dot_add(share, below, 0.0); }
    }
  }
  workgroupBarrier();
}

// Makes a query's sums those for a larger maximum.
fn lower(all: ptr<function, Sums>, f: u32, j: u32, top: f32) {
  let state = State((*all).tops[f][j], (*all).sums[f][j], (*all).weighted[f][j]);
  let factor = shrink(state.maximum - top);
  let now = lowered(state, top);
  (*all).tops[f][j] = top;
  (*all).sums[f][j] = now.sum;
  if (CAPTURE) { (*all).weighted[f][j] = now.weighted; }
  for (var v = 0u; v < CACHED_VEC4S; v++) { (*all).values[f][j][v] *= factor; }
}

// Adds a round's values.
fn add_round(run: Run, first: u32, lane: u32, to: ptr<function, Sums>) {
  let chunk = lane % CHUNKS;
  let part = min(lane / CHUNKS, PARTS - 1u);
  for (var some = 0u; some < LANES && first + 4u * some <= run.last; some += PARTS) {
    let quad = some + part;
    let key = min(first + 4u * quad, run.last / 4u * 4u);
    let v_at = key_at(run, key) + chunk;
    var x = array<Numbers, 4>();
    for (var i = 0u; i < 4u; i++) {
      // A key that is not there has no share, but what lies in its place may not be a number.
      x[i] = value_numbers(v_at + min(i, run.last - key) * CHUNKS);
    }
    for (var f = 0u; f < FOURS; f++) {
      var four = four_shares(f, quad, lane);
      for (var j = 0u; j < 4u; j++) {
        let p = four[j];
        (*to).sums[f][j] += p.x + p.y + p.z + p.w;
        if (CAPTURE) { (*to).weighted[f][j] += terms[(f * 4u + j) * LANES + quad]; }
        for (var v = 0u; v < CACHED_VEC4S; v++) {
          let sum = fma(vec4f(p.y), x[1][v], fma(vec4f(p.x), x[0][v], (*to).values[f][j][v]));
          (*to).values[f][j][v] = fma(vec4f(p.w), x[3][v], fma(vec4f(p.z), x[2][v], sum));
        }
      }
    }
  }
}
