// Arrays of an answer, as the page reads them from the server's frames (net/frames.js).

/**
 * Whole numbers; `shape`: that of a list if it is left out.
 *
 * @param {ArrayLike<number>} values
 * @param {number[]} [shape]
 */
export const ints = (values, shape = [values.length]) => ({ shape, values: Uint32Array.from(values) });

/**
 * Numbers; a Float32Array is taken as it is.
 *
 * @param {ArrayLike<number>} values
 * @param {number[]} [shape]
 */
export const floats = (values, shape = [values.length]) => ({
  shape,
  values: areFloats(values) ? values : Float32Array.from(values),
});

/**
 * Nothing here is shared with other threads.
 *
 * @param {unknown} values
 * @returns {values is Float32Array<ArrayBuffer>}
 */
const areFloats = (values) => values instanceof Float32Array;
