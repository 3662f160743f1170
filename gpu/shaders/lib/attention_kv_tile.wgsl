// One KV tile of lib/attention_split.wgsl: KV_TILE = 4 · LANES keys for QUERIES queries.
//
// A lane scores four keys, then adds the values of every VALUE_GROUPS-th quad of keys for one chunk
// of dimensions. Arrays are nested by quads, as the loops are, so that drivers unroll the loops and
// keep the arrays in registers. QUAD_SIZE queries of each quad are computed: 4, or QUERIES if these
// are fewer.
// use: quad

struct Sums { // running sums of a split, for this lane's chunk of dimensions
  maxima: array<array<f32, 4>, QUERY_QUADS>,
  sums: array<array<f32, 4>, QUERY_QUADS>,
  weighted: array<array<f32, 4>, QUERY_QUADS>, // see State
  values: array<array<Numbers, 4>, QUERY_QUADS>,
}

fn score_keys(
  run: SequenceRows, key: u32, at: ptr<function, QueryOffsets>,
) -> array<array<vec4f, 4>, QUERY_QUADS> {
  var scores = array<array<vec4f, 4>, QUERY_QUADS>();
  for (var f = 0u; f < QUERY_QUADS; f++) {
    for (var j = 0u; j < QUAD_SIZE; j++) { scores[f][j] = vec4f(); }
  }
  let k_at = key_at(run, min(key, run.last / 4u * 4u));
  for (var c = 0u; c < CHUNKS; c++) {
    var k = array<Numbers, 4>();
    for (var i = 0u; i < 4u; i++) { k[i] = key_numbers(k_at + i * CHUNKS + c); }
    for (var v = 0u; v < CACHED_VEC4S; v++) {
      for (var f = 0u; f < QUERY_QUADS; f++) {
        var queries = quad_queries(at, f, c * CACHED_VEC4S + v);
        for (var j = 0u; j < QUAD_SIZE; j++) {
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

// Which of four keys from `first` to before `end` query i may attend to.
fn visible(run: SequenceRows, i: u32, keys: vec4u, first: u32, end: u32) -> vec4<bool> {
  let unmasked = are_unmasked(run, i, keys);
  if (WINDOW == 0u) { return (keys < vec4u(end)) & unmasked; }
  return (keys < vec4u(end)) & (keys >= vec4u(first)) & unmasked;
}

// Scores this lane's keys, stores their weights in `probs`, updates the maxima.
fn score_kv_tile(run: SequenceRows, first: u32, lane: u32, at: ptr<function, QueryOffsets>,
               seen: ptr<function, SeenKeys>,
               before: ptr<function, Sums>) {
  let key = first + 4u * lane;
  let keys = vec4u(key, key + 1u, key + 2u, key + 3u);
  var scores = score_keys(run, key, at);
  for (var f = 0u; f < QUERY_QUADS; f++) {
    for (var j = 0u; j < QUAD_SIZE; j++) {
      let i = f * 4u + j;
      let score = scores_of(scores[f][j], key_biases(run, i, keys));
      let is_seen = visible(run, i, keys, (*seen).first[f][j], (*seen).end[f][j]);
      let s = select(vec4f(LOWEST), score, is_seen);
      scores[f][j] = s;
      store_maximum(i, lane, max(max(s.x, s.y), max(s.z, s.w)));
    }
  }
  workgroupBarrier();
  reduce_maxima(lane);
  for (var f = 0u; f < QUERY_QUADS; f++) {
    let maxima = quad_maxima(f, lane);
    for (var j = 0u; j < QUAD_SIZE; j++) {
      let top = max((*before).maxima[f][j], maxima[j]);
      rescale(before, f, j, top);
      let below = scores[f][j] - top;
      var share = exp2(below);
      // A query may see no key of a tile; then all differences are 0 and weights would be 1.
      if (WINDOW > 0u || MASKED) {
        let is_seen = visible(run, f * 4u + j, keys, (*seen).first[f][j], (*seen).end[f][j]);
        share = select(vec4f(), share, is_seen);
      }
      let place = (f * 4u + j) * LANES + lane;
      probs[place] = load16_of(share);
      if (CAPTURE) { terms[place] = dot_add(share, below, 0.0); }
    }
  }
  workgroupBarrier();
}

// Rescales a query's sums to a larger maximum.
fn rescale(all: ptr<function, Sums>, f: u32, j: u32, top: f32) {
  let state = State((*all).maxima[f][j], (*all).sums[f][j], (*all).weighted[f][j]);
  let factor = rescale_factor(state.maximum - top);
  let now = rescaled(state, top);
  (*all).maxima[f][j] = top;
  (*all).sums[f][j] = now.sum;
  if (CAPTURE) { (*all).weighted[f][j] = now.weighted; }
  for (var v = 0u; v < CACHED_VEC4S; v++) { (*all).values[f][j][v] *= factor; }
}

// Adds the weighted values of a tile.
fn add_kv_tile(run: SequenceRows, first: u32, lane: u32, to: ptr<function, Sums>) {
  let chunk = lane % CHUNKS;
  let part = min(lane / CHUNKS, VALUE_GROUPS - 1u);
  for (var some = 0u; some < LANES && first + 4u * some <= run.last; some += VALUE_GROUPS) {
    let quad = some + part;
    let key = min(first + 4u * quad, run.last / 4u * 4u);
    let v_at = key_at(run, key) + chunk;
    var x = array<Numbers, 4>();
    for (var i = 0u; i < 4u; i++) {
      // Past the last key weights are 0, but memory there may hold NaN.
      x[i] = value_numbers(v_at + min(i, run.last - key) * CHUNKS);
    }
    for (var f = 0u; f < QUERY_QUADS; f++) {
      var four = quad_probs(f, quad, lane);
      for (var j = 0u; j < QUAD_SIZE; j++) {
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
