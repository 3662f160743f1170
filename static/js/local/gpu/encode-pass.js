// @ts-nocheck
// Compute passes of a prepared plan.

/** Encode `dispatches`, [pipeline, bind group, [x, y, z]] each, as one pass. */
export function encodePass(encoder, dispatches, descriptor = {}) {
  const pass = encoder.beginComputePass(descriptor);
  let last = null;
  for (const [pipeline, group, [x, y, z]] of dispatches) {
    if (pipeline !== last) pass.setPipeline(pipeline);
    last = pipeline;
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(x, y, z);
  }
  pass.end();
}

/** Encode `dispatches` as passes that end after `ends` of them, and time each by `clock`. */
export function encodeTimed(encoder, dispatches, ends, clock) {
  ends.forEach((end, i) => {
    const part = dispatches.slice(ends[i - 1] ?? 0, end);
    encodePass(encoder, part, { timestampWrites: clock.writes(i) });
  });
}
