// @ts-nocheck
// Compute pipelines and bind groups of a plan, made when they are first needed and then kept.

export class Pipelines {
  constructor(device, plan, buffers) {
    this.device = device;
    this.plan = plan;
    this.buffers = buffers;
    this.modules = new Map();
    this.layouts = new Map();
    this.pipelines = new Map();
    this.prepared = new Map();
  }

  /** Number of pipelines that are compiled or being compiled. */
  get size() {
    return this.pipelines.size;
  }

  /**
   * Resolves to the dispatches of a recorded plan, [pipeline, bind group, [x, y, z]] each. The
   * promise is kept: a plan is prepared once.
   */
  prepare(recorded) {
    if (!this.prepared.has(recorded)) this.prepared.set(recorded, this.build(recorded));
    return this.prepared.get(recorded);
  }

  async build(recorded) {
    const dispatches = recorded.dispatches.flatMap(([first, n]) =>
      this.plan.dispatches.slice(first, first + n),
    );
    const pipelines = await Promise.all(dispatches.map(([, kernel]) => this.pipeline(kernel)));
    return dispatches.map(([label, kernel, grid, views], i) => [
      pipelines[i],
      this.bindGroup(label, kernel, views),
      grid,
    ]);
  }

  /** Compile all kernels of the given plans; `onProgress(done, total)` counts them. */
  async compile(plans, onProgress = () => {}) {
    const kernels = new Set();
    for (const { dispatches } of plans)
      for (const [first, n] of dispatches)
        for (const [, kernel] of this.plan.dispatches.slice(first, first + n)) kernels.add(kernel);
    let done = 0;
    const count = () => onProgress(++done, kernels.size);
    await Promise.all([...kernels].map((kernel) => this.pipeline(kernel).then(count)));
  }

  pipeline(kernel) {
    if (!this.pipelines.has(kernel)) {
      const { name, source, constants } = this.plan.kernels[kernel];
      const layout = this.device.createPipelineLayout({ bindGroupLayouts: [this.layout(kernel)] });
      const compute = { module: this.module(source), entryPoint: "main", constants };
      const made = this.device.createComputePipelineAsync({ label: name, layout, compute });
      this.pipelines.set(kernel, made);
    }
    return this.pipelines.get(kernel);
  }

  module(source) {
    if (!this.modules.has(source))
      this.modules.set(source, this.device.createShaderModule({ code: this.plan.sources[source] }));
    return this.modules.get(source);
  }

  layout(kernel) {
    const { bindings } = this.plan.kernels[kernel];
    const key = JSON.stringify(bindings);
    if (!this.layouts.has(key)) {
      const entries = bindings.map(([binding, type]) => ({
        binding,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type },
      }));
      this.layouts.set(key, this.device.createBindGroupLayout({ entries }));
    }
    return this.layouts.get(key);
  }

  bindGroup(label, kernel, views) {
    const { bindings } = this.plan.kernels[kernel];
    const entries = views.map((view, i) => ({
      binding: bindings[i][0],
      resource: this.buffers.binding(view),
    }));
    return this.device.createBindGroup({ label, layout: this.layout(kernel), entries });
  }
}
