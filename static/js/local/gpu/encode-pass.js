// One compute pass of a prepared plan.

/** Encode `dispatches`, [pipeline, bind group, [x, y, z]] each. */
export function encodePass(encoder, dispatches) {
  const pass = encoder.beginComputePass();
  let last = null;
  for (const [pipeline, group, [x, y, z]] of dispatches) {
    if (pipeline !== last) pass.setPipeline(pipeline);
    last = pipeline;
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(x, y, z);
  }
  pass.end();
}
