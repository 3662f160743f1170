// round(n · x / size), ties to even, the same on every device. WGSL allows a division 2.5 ULP, and
// where x lies between two integers it may choose the other one. Products are rounded alike
// everywhere, so they decide.
const LEAST_SIZE = 1e-36; // n / LEAST_SIZE is finite

// n / size; 0 if that might overflow.
fn over(n: f32, size: f32) -> f32 { return select(0.0, n / size, size >= LEAST_SIZE); }

// `quotient`: over(n, size). Where it is 0, the result is.
fn round_quotient(x: vec4f, n: f32, size: f32, quotient: f32) -> vec4f {
  let low = floor(x * quotient); // this or the next is nearest
  let middle = (low + 0.5) * size;
  let scaled = x * select(0.0, n, quotient > 0.0);
  let is_odd = (vec4i(low) & vec4i(1)) != vec4i();
  let is_above = select(scaled > middle, scaled >= middle, is_odd);
  return low + select(vec4f(), vec4f(1.0), is_above);
}
