// @ts-nocheck
// Shapes of parsed JSON. A shape is a function (value, path) that throws where a value is another.

/** A value that is not of its shape: the message says where, what was expected and what came. */
export class ShapeError extends Error {}

const MAX_SHOWN = 60;

/** Throw unless `holds`. */
function need(holds, value, path, expected) {
  if (holds) return;
  const shown = JSON.stringify(value) ?? "nothing";
  const came = shown.length > MAX_SHOWN ? `${shown.slice(0, MAX_SHOWN)}…` : shown;
  throw new ShapeError(`${path} should be ${expected} and is ${came}`);
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

export const text = (value, path) => need(typeof value === "string", value, path, "a string");

export const bool = (value, path) => need(typeof value === "boolean", value, path, "true or false");

export const number = (value, path) => need(Number.isFinite(value), value, path, "a number");

/** A whole number from `least` to `most`. */
export const whole = (least, most) => (value, path) =>
  need(
    Number.isSafeInteger(value) && value >= least && value <= most,
    value,
    path,
    `a whole number from ${least} to ${most}`,
  );

export const oneOf = (...values) => (value, path) =>
  need(values.includes(value), value, path, `one of ${values.map((each) => JSON.stringify(each)).join(", ")}`);

/** A value that may be left out. */
export const optional = (shape) => (value, path) => {
  if (value !== undefined) shape(value, path);
};

/** A value that may be null. */
export const nullable = (shape) => (value, path) => {
  if (value !== null) shape(value, path);
};

/** A list of `least` to `most` values of one shape. */
export const list = (shape, most, least = 0) => (value, path) => {
  const fits = Array.isArray(value) && value.length >= least && value.length <= most;
  need(fits, value, path, `a list of ${least} to ${most} values`);
  value.forEach((each, i) => shape(each, `${path}[${i}]`));
};

/** A list with one value of each shape. */
export const tuple = (...shapes) => (value, path) => {
  const fits = Array.isArray(value) && value.length === shapes.length;
  need(fits, value, path, `a list of ${shapes.length} values`);
  shapes.forEach((shape, i) => shape(value[i], `${path}[${i}]`));
};

/** An object with these fields; others are left alone. */
export const struct = (fields) => (value, path) => {
  need(isObject(value), value, path, "an object");
  for (const [name, shape] of Object.entries(fields)) shape(value[name], path ? `${path}.${name}` : name);
};

/** An object of at most `most` fields, all of one shape. */
export const mapOf = (shape, most) => (value, path) => {
  const fits = isObject(value) && Object.keys(value).length <= most;
  need(fits, value, path, `an object of at most ${most} fields`);
  for (const [name, each] of Object.entries(value)) shape(each, `${path}.${name}`);
};
