// exp, and exactly 1 where x is 0. WGSL allows exp an error of 3 ULP there too, but the most likely
// token has mass 1, and equal tokens have equal shares, on every device.
fn exponentials(x: vec4f) -> vec4f { return select(exp(x), vec4f(1.0), x == vec4f()); }
