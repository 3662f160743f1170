// Tokens whose keys are equal stand by rising id: which is the n-th of them.
// use: window
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
