// y = [bias +] what LoRA adapters (Hu et al. 2021) add to the outputs of a matrix, by how strong
// each is in the slot of a row:
//
//   y[n] = bias[n] + Σ strength of an adapter · Σ b[r][n] · shrunk[first[n] + r]    r: its ranks
//
// An adapter of strength 0 is not read, whatever its numbers are: its row keeps every bit.
//
// With experts a row has PER_TOKEN pairs, each with its own row of shrunk and y, and the b of the
// pair's expert: pair = row · PER_TOKEN + k. Without, PER_TOKEN is 0.
//
// shrunk     [n_rows][SHRUNK_STRIDE]: A · x of every module that the matrix is made of
// b          [ranks][STRIDE / 4] vec4, of each expert one behind the other
// first      [STRIDE / 4] vec4: where the numbers of an output's module begin
// ends       [N_LORAS]: where the ranks of an adapter end
// strengths  [n_slots][N_LORAS]
// bias       [≥ STRIDE / 4] vec4 (any buffer when not BIAS)
// chosen     [pairs] the expert of each (any buffer without experts)
// y          [n_rows][STRIDE / 4] vec4
// use: step
override N_LORAS: u32;
override SHRUNK_STRIDE: u32;
override STRIDE: u32;
override BIAS: bool = false;
override PER_TOKEN: u32 = 0u;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> shrunk: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<vec4f>;
@group(0) @binding(3) var<storage, read> first: array<vec4u>;
@group(0) @binding(4) var<storage, read> ends: array<u32>;
@group(0) @binding(5) var<storage, read> strengths: array<f32>;
@group(0) @binding(6) var<storage, read> bias: array<vec4f>;
@group(0) @binding(7) var<storage, read> chosen: array<u32>;
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let column = id.x;
  let row = id.y; // or pair
  let each = max(PER_TOKEN, 1u);
  if (column >= STRIDE / 4u || row >= step.n_rows * each) { return; }
  let slot = step.rows[row / each].slot;
  let at = first[column] + row * SHRUNK_STRIDE;
  var b_at = column;
  if (PER_TOKEN > 0u) { b_at += chosen[row] * ends[N_LORAS - 1u] * (STRIDE / 4u); }
  var total = vec4f();
  if (BIAS) { total = bias[column]; }
  var r = 0u;
  for (var i = 0u; i < N_LORAS; i++) {
    let end = ends[i];
    let strength = strengths[slot * N_LORAS + i];
    if (strength != 0.0) {
      var sum = vec4f();
      for (; r < end; r++) {
        let x = vec4f(shrunk[at.x + r], shrunk[at.y + r], shrunk[at.z + r], shrunk[at.w + r]);
        sum = fma(b[b_at + r * (STRIDE / 4u)], x, sum);
      }
      total = fma(vec4f(strength), sum, total);
    }
    r = end;
  }
  y[row * (STRIDE / 4u) + column] = total;
}
