// Compute pipelines and bind groups of a plan, made when they are first needed and then kept.

/** @typedef {import("./encode-pass.js").Dispatch} Dispatch */

export class Pipelines {
  /**
   * @param {GPUDevice} device
   * @param {Exported.PlanFile} plan
   * @param {import("./buffers.js").Buffers} buffers
   */
  constructor(device, plan, buffers) {
    this.device = device;
    this.plan = plan;
    this.buffers = buffers;
    /** @type {Map<number, GPUShaderModule>} */
    this.modules = new Map();
    /** @type {Map<string, GPUBindGroupLayout>} */
    this.layouts = new Map();
    /** @type {Map<number, Promise<GPUComputePipeline>>} */
    this.pipelines = new Map();
    /** @type {Map<Exported.RecordedStep, Promise<Dispatch[]>>} */
    this.prepared = new Map();
  }

  /** Number of pipelines that are compiled or being compiled. */
  get size() {
    return this.pipelines.size;
  }

  /**
   * Resolves to the dispatches of a recorded plan. The promise is kept: a plan is prepared once.
   *
   * @param {Exported.RecordedStep} recorded
   */
  prepare(recorded) {
    return madeOnce(this.prepared, recorded, () => this.build(recorded));
  }

  /** @param {Exported.RecordedStep} recorded @returns {Promise<Dispatch[]>} */
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

  /**
   * Compile all kernels of the given plans; `onProgress(done, total)` counts them.
   *
   * @param {Exported.RecordedStep[]} plans
   * @param {(done: number, total: number) => void} [onProgress]
   */
  async compile(plans, onProgress = () => {}) {
    /** @type {Set<number>} */
    const kernels = new Set();
    for (const { dispatches } of plans)
      for (const [first, n] of dispatches)
        for (const [, kernel] of this.plan.dispatches.slice(first, first + n)) kernels.add(kernel);
    let done = 0;
    const count = () => onProgress(++done, kernels.size);
    await Promise.all([...kernels].map((kernel) => this.pipeline(kernel).then(count)));
  }

  /** @param {number} kernel */
  pipeline(kernel) {
    return madeOnce(this.pipelines, kernel, () => {
      const { name, source, constants } = this.plan.kernels[kernel];
      const layout = this.device.createPipelineLayout({ bindGroupLayouts: [this.layout(kernel)] });
      const compute = { module: this.module(source), entryPoint: "main", constants };
      return this.device.createComputePipelineAsync({ label: name, layout, compute });
    });
  }

  /** @param {number} source */
  module(source) {
    const code = this.plan.sources[source];
    return madeOnce(this.modules, source, () => this.device.createShaderModule({ code }));
  }

  /** @param {number} kernel */
  layout(kernel) {
    const { bindings } = this.plan.kernels[kernel];
    return madeOnce(this.layouts, JSON.stringify(bindings), () => {
      const entries = bindings.map(([binding, type]) => ({
        binding,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type },
      }));
      return this.device.createBindGroupLayout({ entries });
    });
  }

  /** @param {string} label @param {number} kernel @param {number[]} views */
  bindGroup(label, kernel, views) {
    const { bindings } = this.plan.kernels[kernel];
    const entries = views.map((view, i) => ({
      binding: bindings[i][0],
      resource: this.buffers.binding(view),
    }));
    return this.device.createBindGroup({ label, layout: this.layout(kernel), entries });
  }
}

/**
 * Return the value of `key`, made now if it is new.
 *
 * @template K, V
 * @param {Map<K, V>} made
 * @param {K} key
 * @param {() => V} make
 * @returns {V}
 */
function madeOnce(made, key, make) {
  const known = made.get(key);
  if (known !== undefined) return known;
  const value = make();
  made.set(key, value);
  return value;
}
