// Compute passes of a prepared plan.

/** @typedef {[pipeline: GPUComputePipeline, group: GPUBindGroup, workgroups: number[]]} Dispatch */

/**
 * Encode `dispatches` as one pass.
 *
 * @param {GPUCommandEncoder} encoder
 * @param {Dispatch[]} dispatches
 * @param {GPUComputePassDescriptor} [descriptor]
 */
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

/**
 * Encode `dispatches` as passes that end after `ends` of them, and time each by `clock`.
 *
 * @param {GPUCommandEncoder} encoder
 * @param {Dispatch[]} dispatches
 * @param {number[]} ends
 * @param {{writes(i: number): GPUComputePassTimestampWrites}} clock
 */
export function encodeTimed(encoder, dispatches, ends, clock) {
  ends.forEach((end, i) => {
    const part = dispatches.slice(ends[i - 1] ?? 0, end);
    encodePass(encoder, part, { timestampWrites: clock.writes(i) });
  });
}
