// Padding of rows in GPU buffers, as on the server.

/** Numbers of a block, to which rows are padded (gpu/webgpu/buffers.py). */
const BLOCK = 32;

/** A row's length rounded up to whole blocks. @param {number} n */
export const padded = (n) => Math.ceil(n / BLOCK) * BLOCK;
