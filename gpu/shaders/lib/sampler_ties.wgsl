// The n-th of the tokens with one key, by rising id.
// use: sampler_buffer
var<workgroup> shared_part: vec2u;

// Id of the n-th token with this key, counted from 0 by rising id; there must be that many. Each
// round divides the remaining ids into LANES parts and counts in each.
fn nth_tied(row: KeySlice, key: u32, n: u32) -> u32 {
  var begin = 0u;
  var end = row.n;
  var left = n; // tokens with this key before it
  while (end - begin > 1u) {
    let size = (end - begin + LANES - 1u) / LANES;
    let mine = begin + lane * size;
    var count = vec4f();
    for (var quad = mine; quad < min(mine + size, end); quad++) {
      count += select(vec4f(), vec4f(1.0), sort_keys[row.first + quad] == vec4u(key));
    }
    partials[lane] = count;
    workgroupBarrier();
    if (lane == 0u) { shared_part = pick_tied_part(left); }
    let part = workgroupUniformLoad(&shared_part);
    begin = min(begin + part.x * size, end - 1u); // terminates even if there are fewer
    end = min(begin + size, end);
    left = part.y;
  }
  let four = sort_keys[row.first + begin];
  for (var j = 0u; j < 4u; j++) {
    if (four[j] != key) { continue; }
    if (left == 0u) { return begin * 4u + j; }
    left--;
  }
  return NO_ID;
}

// (part that holds the n-th token, tokens to skip in it).
fn pick_tied_part(n: u32) -> vec2u {
  var left = n;
  for (var l = 0u; l < LANES - 1u; l++) {
    let count = u32(dot(partials[l], vec4f(1.0)));
    if (count > left) { return vec2u(l, left); }
    left -= count;
  }
  return vec2u(LANES - 1u, left);
}
