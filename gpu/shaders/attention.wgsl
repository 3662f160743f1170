// out = softmax(cap(q · kᵀ · scale)) · v over the positions up to the row's own, or the last WINDOW
// of them, for heads that share keys and values in groups (Ainslie et al. 2023); scores stay on
// chip (Dao et al. 2022). cap: see lib/soft_cap.wgsl.
//
// One workgroup reads each key and value once for QUERIES queries: HEADS heads of a group in ROWS
// rows that follow each other. It walks the context in rounds, see lib/attention_round.wgsl. A
// context is cut in splits of SPLIT keys. PARTIAL: a workgroup takes one split and leaves its
// state and values for attention_merge; else it takes one split after the other and merges them
// itself, in the same order with the same operations. The order of every sum depends on LANES,
// PARTS and SPLIT alone, not on what else is in the step.
//
// q             [n_rows][Q_STRIDE / 4] vec4
// k_pool, v_pool, block_tables  see lib/paging.wgsl
// out           [n_rows][Q_STRIDE / 4] vec4; PARTIAL: [n_splits][FEW_ROWS][Q_STRIDE / 4]
// heads_out     [n_rows][N_HEADS] entropy in bits (untouched when not CAPTURE);
//               PARTIAL: [n_splits][FEW_ROWS][N_HEADS] State
// use: step
// use: words
// use: kv
// use: cached_keys
// use: cached_values
// use: paging
// use: fma4
// use: softmax_state
// use: soft_cap
// use: attention_round
// prelude: const HEAD_VEC4S (head_dim / 4), GROUP (heads that share keys), HEADS, ROWS, LANES,
// PARTS (sums of a value, of every PARTS-th four keys), FEW_ROWS (most rows of a step that is
// split)
override N_HEADS: u32;
override Q_STRIDE: u32;
override SCALE: f32; // of q · k, times log2(e)
override WINDOW: u32 = 0u; // keys a row sees at most, 0: all
override SPLIT: u32; // keys, whole rounds
override PARTIAL: bool;
override CAPTURE: bool = false;

const QUERIES = ROWS * HEADS;
const GROUP_PARTS = (GROUP + HEADS - 1u) / HEADS; // workgroups that share a group's heads
const FOURS = (QUERIES + 3u) / 4u;
const CHUNKS = HEAD_VEC4S / CACHED_VEC4S; // loads of a key
const ROUND = 4u * LANES; // keys
alias Places = array<u32, FOURS * PLACES>; // of queries in q
alias Keys = array<array<u32, 4>, FOURS>;  // how many each query may see

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> q: array<Sixteen>;
@group(0) @binding(2) var<storage, read> k_pool: array<Cached>;
@group(0) @binding(3) var<storage, read> v_pool: array<Cached>;
@group(0) @binding(4) var<storage, read> block_tables: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<Sixteen>;
@group(0) @binding(6) var<storage, read_write> heads_out: array<f32>;

// [query][four keys]: 2^(score − maximum), and what they add to State.weighted
var<workgroup> shares: array<Sixteen, 4u * FOURS * LANES>;
var<workgroup> terms: array<f32, 4u * FOURS * LANES>;
var<workgroup> of_lanes: array<f32, 4u * FOURS * LANES>; // [query][lane] maxima, at last sums
var<workgroup> maxima: array<f32, 4u * FOURS>;
var<workgroup> finished: array<State, QUERIES>; // of the splits before

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let part = group.x % GROUP_PARTS;
  var run = Run();
  run.kv_head = group.x / GROUP_PARTS;
  run.head = run.kv_head * GROUP + part * HEADS;
  run.n_heads = min(HEADS, GROUP - part * HEADS);
  let end = min((group.y + 1u) * ROWS, step.n_rows);
  for (var row = group.y * ROWS; row < end; row += run.n) {
    run.first = row;
    run.n = 1u;
    run.last = step.rows[row].position;
    run.least = run.last;
    let slot = step.rows[row].slot;
    run.table = slot * MAX_BLOCKS;
    while (row + run.n < end && step.rows[row + run.n].slot == slot) {
      run.last = max(run.last, step.rows[row + run.n].position);
      run.least = min(run.least, step.rows[row + run.n].position);
      run.n++;
    }
    if (PARTIAL) {
      if (group.z * SPLIT <= run.last) { attend(run, group.z, lane); }
    } else {
      for (var split = 0u; split * SPLIT <= run.last; split++) { attend(run, split, lane); }
    }
  }
}

// The first key that a row at `position` sees.
fn first_seen(position: u32) -> u32 {
  return select(0u, position + 1u - WINDOW, WINDOW > 0u && position >= WINDOW);
}

// One split of a run's context, from its first key to the run's last. Rounds before all windows are
// left out, which changes no bit: what a query does not see has no share.
fn attend(run: Run, split: u32, lane: u32) {
  var at = Places();
  for (var i = 0u; i < FOURS * PLACES; i++) { at[i] = query_at(run, query_of(i, lane)); }
  var n_keys = Keys();
  var sums = Sums();
  for (var f = 0u; f < FOURS; f++) {
    for (var j = 0u; j < 4u; j++) {
      let row = (f * 4u + j) / HEADS;
      let position = step.rows[run.first + min(row, run.n - 1u)].position;
      n_keys[f][j] = select(0u, position + 1u, row < run.n);
      sums.tops[f][j] = LOWEST;
      sums.sums[f][j] = 0.0;
      sums.weighted[f][j] = 0.0;
      for (var v = 0u; v < CACHED_VEC4S; v++) { sums.values[f][j][v] = vec4f(); }
    }
  }
  let end = min(run.last + 1u, (split + 1u) * SPLIT);
  let begin = max(split * SPLIT, first_seen(run.least) / ROUND * ROUND);
  for (var first = begin; first < end; first += ROUND) {
    weigh_round(run, first, lane, &at, &n_keys, &sums);
    add_round(run, first, lane, &sums);
  }
  workgroupBarrier();
  if (PARTS == 1u && !PARTIAL && run.last < SPLIT) {
    leave_own(run, lane, &n_keys, &sums);
  } else {
    leave_together(run, split, lane, &sums);
  }
}

// Where query i begins in q; that of a real one where there is none.
fn query_at(run: Run, i: u32) -> u32 {
  let row = run.first + min(i / HEADS, run.n - 1u);
  let head = run.head + min(i % HEADS, run.n_heads - 1u);
  return row * (Q_STRIDE / 4u) + head * HEAD_VEC4S;
}

// Leaves what came of a run's only split where each lane has all of its chunk's sums.
fn leave_own(run: Run, lane: u32, n_keys: ptr<function, Keys>, sums: ptr<function, Sums>) {
  for (var f = 0u; f < FOURS; f++) {
    for (var j = 0u; j < 4u; j++) {
      let i = f * 4u + j;
      let row = run.first + i / HEADS;
      let head = run.head + i % HEADS;
      let is_query = (*n_keys)[f][j] > 0u && i % HEADS < run.n_heads;
      if (is_query && lane < CHUNKS) {
        let at = row * (Q_STRIDE / 4u) + head * HEAD_VEC4S + lane * CACHED_VEC4S;
        for (var v = 0u; v < CACHED_VEC4S; v++) {
          out[at + v] = sixteen_of((*sums).values[f][j][v] / (*sums).sums[f][j]);
        }
      }
      if (CAPTURE && is_query && lane == 0u) {
        let state = State((*sums).tops[f][j], (*sums).sums[f][j], (*sums).weighted[f][j]);
        heads_out[row * N_HEADS + head] = entropy_bits(state);
      }
    }
  }
}

// Puts the parts of a split together and merges it with the splits before, or leaves it to merge.
fn leave_together(run: Run, split: u32, lane: u32, sums: ptr<function, Sums>) {
  for (var f = 0u; f < FOURS; f++) {
    for (var j = 0u; j < 4u; j++) {
      let i = f * 4u + j;
      if (lane == 0u) { maxima[i] = (*sums).tops[f][j]; }
      of_lanes[i * LANES + lane] = (*sums).sums[f][j];
      if (CAPTURE) { terms[i * LANES + lane] = (*sums).weighted[f][j]; }
    }
  }
  for (var v = 0u; v < CACHED_VEC4S; v++) {
    for (var f = 0u; f < FOURS; f++) {
      for (var j = 0u; j < 4u; j++) {
        shares[(f * 4u + j) * LANES + lane] = sixteen_of(nth_of((*sums).values[f][j], v));
      }
    }
    workgroupBarrier();
    for (var n = lane; n < QUERIES * CHUNKS; n += LANES) {
      let i = n / CHUNKS;
      let chunk = n % CHUNKS;
      if (has_keys(run, i, split)) {
        var total = vec4f();
        for (var part = 0u; part < PARTS; part++) {
          total += floats_of(shares[i * LANES + part * CHUNKS + chunk]);
        }
        leave_values(run, split, i, chunk * CACHED_VEC4S + v, total);
      }
    }
    workgroupBarrier();
  }
  for (var i = lane; i < QUERIES; i += LANES) {
    if (has_keys(run, i, split)) { leave_state(run, split, i); }
  }
  workgroupBarrier();
}

// Picked without an index that is no constant, which would keep all sums in memory in every round.
fn nth_of(numbers: Numbers, v: u32) -> vec4f {
  if (v == 0u) { return numbers[0]; }
  return numbers[CACHED_VEC4S - 1u];
}

// Is query i one of the run's, with keys in this split?
fn has_keys(run: Run, i: u32, split: u32) -> bool {
  let row = i / HEADS;
  return row < run.n && i % HEADS < run.n_heads
    && step.rows[run.first + row].position >= split * SPLIT;
}

fn state_of(i: u32) -> State {
  var state = State(maxima[i], 0.0, 0.0);
  for (var part = 0u; part < PARTS; part++) {
    state.sum += of_lanes[i * LANES + part * CHUNKS];
    if (CAPTURE) { state.weighted += terms[i * LANES + part * CHUNKS]; }
  }
  return state;
}

fn leave_values(run: Run, split: u32, i: u32, d: u32, total: vec4f) {
  let row = run.first + i / HEADS;
  let at = (run.head + i % HEADS) * HEAD_VEC4S + d;
  if (PARTIAL) {
    out[(split * FEW_ROWS + row) * (Q_STRIDE / 4u) + at] = sixteen_of(total);
    return;
  }
  let place = row * (Q_STRIDE / 4u) + at;
  var state = state_of(i);
  var v = total;
  if (split > 0u) {
    v = merged_values(finished[i], floats_of(out[place]), state, total);
    state = merged(finished[i], state);
  }
  if (step.rows[row].position / SPLIT == split) { v /= state.sum; }
  out[place] = sixteen_of(v);
}

fn leave_state(run: Run, split: u32, i: u32) {
  let row = run.first + i / HEADS;
  let head = run.head + i % HEADS;
  var state = state_of(i);
  if (PARTIAL) {
    let at = ((split * FEW_ROWS + row) * N_HEADS + head) * 3u;
    heads_out[at] = state.maximum;
    heads_out[at + 1u] = state.sum;
    heads_out[at + 2u] = state.weighted;
    return;
  }
  if (split > 0u) { state = merged(finished[i], state); }
  finished[i] = state;
  if (CAPTURE && step.rows[row].position / SPLIT == split) {
    heads_out[row * N_HEADS + head] = entropy_bits(state);
  }
}
