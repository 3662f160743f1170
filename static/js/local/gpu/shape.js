// Shapes of parsed JSON. A shape is a function (value, path) that throws where a value is another.

/**
 * Throws ShapeError unless the value at `path` is of this shape.
 *
 * @typedef {(value: unknown, path: string) => void} Shape
 */

/** A value that is not of its shape: the message says where, what was expected and what came. */
export class ShapeError extends Error {}

const MAX_SHOWN = 60;

/**
 * Throw unless `holds`.
 *
 * @param {boolean} holds
 * @param {unknown} value
 * @param {string} path
 * @param {string} expected
 */
function need(holds, value, path, expected) {
  if (holds) return;
  const shown = JSON.stringify(value) ?? "nothing";
  const came = shown.length > MAX_SHOWN ? `${shown.slice(0, MAX_SHOWN)}…` : shown;
  throw new ShapeError(`${path} should be ${expected} and is ${came}`);
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @type {Shape} */
export const text = (value, path) => need(typeof value === "string", value, path, "a string");

/** @type {Shape} */
export const bool = (value, path) => need(typeof value === "boolean", value, path, "true or false");

/** @type {Shape} */
export const number = (value, path) => need(Number.isFinite(value), value, path, "a number");

/** A whole number from `least` to `most`. @param {number} least @param {number} most @returns {Shape} */
export const whole = (least, most) => (value, path) =>
  need(
    Number.isSafeInteger(value) && Number(value) >= least && Number(value) <= most,
    value,
    path,
    `a whole number from ${least} to ${most}`,
  );

/** @param {unknown[]} values @returns {Shape} */
export const oneOf = (...values) => (value, path) =>
  need(values.includes(value), value, path, `one of ${values.map((each) => JSON.stringify(each)).join(", ")}`);

/** A value that may be left out. @param {Shape} shape @returns {Shape} */
export const optional = (shape) => (value, path) => {
  if (value !== undefined) shape(value, path);
};

/** A value that may be null. @param {Shape} shape @returns {Shape} */
export const nullable = (shape) => (value, path) => {
  if (value !== null) shape(value, path);
};

/**
 * A list of `least` to `most` values of one shape.
 *
 * @param {Shape} shape
 * @param {number} most
 * @param {number} [least]
 * @returns {Shape}
 */
export const list = (shape, most, least = 0) => (value, path) => {
  const values = Array.isArray(value) ? value : null;
  const fits = !!values && values.length >= least && values.length <= most;
  need(fits, value, path, `a list of ${least} to ${most} values`);
  values?.forEach((each, i) => shape(each, `${path}[${i}]`));
};

/** A list with one value of each shape. @param {Shape[]} shapes @returns {Shape} */
export const tuple = (...shapes) => (value, path) => {
  const values = Array.isArray(value) ? value : [];
  need(values.length === shapes.length, value, path, `a list of ${shapes.length} values`);
  shapes.forEach((shape, i) => shape(values[i], `${path}[${i}]`));
};

/**
 * An object with these fields; others are left alone.
 *
 * @param {Record<string, Shape>} fields
 * @returns {Shape}
 */
export const struct = (fields) => (value, path) => {
  const own = isObject(value) ? value : null;
  need(!!own, value, path, "an object");
  for (const [name, shape] of Object.entries(fields)) shape(own?.[name], path ? `${path}.${name}` : name);
};

/**
 * An object of at most `most` fields, all of one shape.
 *
 * @param {Shape} shape
 * @param {number} most
 * @returns {Shape}
 */
export const mapOf = (shape, most) => (value, path) => {
  const own = isObject(value) ? value : null;
  const fits = !!own && Object.keys(own).length <= most;
  need(fits, value, path, `an object of at most ${most} fields`);
  for (const [name, each] of Object.entries(own ?? {})) shape(each, `${path}.${name}`);
};
