// The most likely tokens of a row, sorted: the window in which nearly every question is answered,
// and the list that people see.
// use: totals
// use: window
const N_CANDIDATES = 20u;

var<workgroup> shared_part: vec2u;

// The id of the n-th token with this key, counted from 0 by rising id; there must be that many.
// Each round counts in LANES parts of what is left.
fn nth_tied(row: Quads, key: u32, n: u32) -> u32 {
  var begin = 0u;
  var end = row.n;
  var left = n; // to skip before it
  while (end - begin > 1u) {
    let size = (end - begin + LANES - 1u) / LANES;
    let mine = begin + lane * size;
    var count = vec4f();
    for (var quad = mine; quad < min(mine + size, end); quad++) {
      count += select(vec4f(), vec4f(1.0), keys[row.first + quad] == vec4u(key));
    }
    partials[lane] = count;
    workgroupBarrier();
    if (lane == 0u) { shared_part = pick_tied_part(left); }
    let part = workgroupUniformLoad(&shared_part);
    begin = min(begin + part.x * size, end - 1u); // ends even if there are not that many
    end = min(begin + size, end);
    left = part.y;
  }
  let four = keys[row.first + begin];
  for (var j = 0u; j < 4u; j++) {
    if (four[j] != key) { continue; }
    if (left == 0u) { return begin * 4u + j; }
    left--;
  }
  return NO_ID;
}

// The part in which the n-th lies, and how many to skip there.
fn pick_tied_part(n: u32) -> vec2u {
  var left = n;
  for (var l = 0u; l < LANES - 1u; l++) {
    let count = u32(dot(partials[l], vec4f(1.0)));
    if (count > left) { return vec2u(l, left); }
    left -= count;
  }
  return vec2u(LANES - 1u, left);
}

// The window of the most likely tokens, about `need` of them or somewhat more.
//
// At least as many tokens reach a key as strips do, and few more; they lie in those strips. Where
// this finds too few tokens, or more than a window holds, the row itself is searched.
fn first_window(row: Quads, summaries: Quads, ends: Extremes, need: u32) -> Window {
  let listed = min(N_CANDIDATES, VOCAB);
  let high = ends.greatest + 1u;
  var low = 1u;
  if (VOCAB > CAPACITY) {
    let all = Span(ends.least, high, strips(), 0u, 0.0);
    low = narrow(summaries, all, Query(false, false, f32(need)), need / 2u).low;
  }
  let n = collect_from_strips(row, summaries, Wanted(low, high, NO_ID));
  var found = Found(n, n, low);
  if (n > CAPACITY || n < listed) {
    found = find_listed(row, Span(select(1u, low, n > CAPACITY), high, VOCAB, 0u, 0.0), listed);
  }
  sort(0u, found.n);
  return Window(0u, found.n_whole, 0u, found.low, add_up(0u, found.n_whole, 0.0));
}

// Entries collected, of which the first are all tokens whose keys reach `low`.
struct Found {
  n: u32,
  n_whole: u32,
  low: u32,
}

// Collects the most likely tokens down to the last that is listed, and as many more as a window
// holds. Too many that tie with the last listed are collected only as far as they are listed.
fn find_listed(row: Quads, all: Span, listed: u32) -> Found {
  let enough = CAPACITY - N_CANDIDATES;
  let span = narrow(row, all, Query(false, false, f32(listed)), enough);
  let tied = span.n > enough;
  var last_id = NO_ID;
  if (tied) { last_id = nth_tied(row, span.low, listed - span.n_above - 1u); }
  let n = collect(row, Wanted(span.low, all.high, last_id), 0u);
  return Found(n, select(n, span.n_above, tied), select(span.low, span.low + 1u, tied));
}
