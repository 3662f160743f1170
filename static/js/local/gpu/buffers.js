// Buffers of a plan on the device: memory, weights, and the tensors that the host writes.

/** @typedef {Uint8Array<ArrayBuffer> | Uint16Array<ArrayBuffer> | Uint32Array<ArrayBuffer> | Float32Array<ArrayBuffer>} Words */

export class Buffers {
  /**
   * Allocate all buffers. Throws an Error if the device has too little memory.
   *
   * @param {GPUDevice} device
   * @param {Exported.PlanFile} plan
   */
  static async allocate(device, plan) {
    const { STORAGE, UNIFORM, COPY_DST, COPY_SRC } = GPUBufferUsage;
    device.pushErrorScope("out-of-memory");
    const buffers = plan.buffers.map(({ name, bytes, uniform }) =>
      device.createBuffer({
        label: name,
        size: Math.ceil(bytes / 4) * 4,
        usage: (uniform ? UNIFORM : STORAGE) | COPY_DST | COPY_SRC,
      }),
    );
    if (await device.popErrorScope()) {
      for (const buffer of buffers) buffer.destroy();
      const needed = Math.ceil(plan.needs.bytes / 2 ** 20);
      throw new Error(
        `this GPU does not have the ${needed} MiB that the model needs; close other pages, or choose a ` +
          "smaller model or storage type",
      );
    }
    return new Buffers(device, plan, buffers);
  }

  /** @param {GPUDevice} device @param {Exported.PlanFile} plan @param {GPUBuffer[]} buffers */
  constructor(device, plan, buffers) {
    this.device = device;
    this.plan = plan;
    this.buffers = buffers;
  }

  /** The range of a view, as a bind group takes it. @param {number} view */
  binding(view) {
    const [buffer, offset, size] = this.plan.views[view];
    return { buffer: this.buffers[buffer], offset, size };
  }

  /** The range of a tensor. @param {string} name */
  tensor(name) {
    return this.binding(this.plan.tensors[name].view);
  }

  /**
   * Write to a tensor from its byte `at` on.
   *
   * @param {string} name
   * @param {Words} data
   * @param {number} [at]
   */
  write(name, data, at = 0) {
    const { buffer, offset } = this.tensor(name);
    this.device.queue.writeBuffer(buffer, offset + at, data);
  }

  /** Write to the beginning of a view. @param {number} view @param {Words} data */
  writeView(view, data) {
    const { buffer, offset } = this.binding(view);
    this.device.queue.writeBuffer(buffer, offset, data);
  }

  /**
   * Write row `row` of a tensor whose first dimension has a row for each slot.
   *
   * @param {string} name
   * @param {number} row
   * @param {Words} words
   */
  writeRow(name, row, words) {
    const [, width] = this.plan.tensors[name].shape;
    this.write(name, words, row * width * 4);
  }

  /** Free the memory of all buffers. */
  destroy() {
    for (const buffer of this.buffers) buffer.destroy();
  }
}
