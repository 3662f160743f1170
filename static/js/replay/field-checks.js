// Checks of values that were read from a file. A check takes a value and its path. It returns a
// copy that has only the fields the check names, or throws BadReplay.

/** Thrown for a file that is not a valid replay; the message is for people. */
export class BadReplay extends Error {}

/**
 * A check of a value at a path: returns its copy, or throws BadReplay.
 *
 * @typedef {(value: any, path: string) => any} Check
 */

/** Refuse fields that no check names, as in a file that is opened; otherwise leave them out. */
let strict = true;

/**
 * Check `value` and leave out the fields that `check` does not name.
 *
 * @param {Check} check
 * @param {unknown} value
 * @param {string} path
 */
export function only(check, value, path) {
  strict = false;
  try {
    return check(value, path);
  } finally {
    strict = true;
  }
}

const MAX_SHOWN = 40;

/** Describe a value in a few characters, for an error. @param {unknown} value */
function shown(value) {
  if (value === undefined) return "missing";
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (value !== null && typeof value === "object") return "an object";
  const text = JSON.stringify(value) ?? String(value);
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text;
}

/**
 * @param {string} path
 * @param {string} expected
 * @param {unknown} value
 */
export function refuse(path, expected, value) {
  const is = value === undefined ? "is missing" : `is ${shown(value)}`;
  throw new BadReplay(`${path} ${is}, but must be ${expected}.`);
}

/** Check a finite number: JSON.parse reads 1e999 as infinity. @returns {Check} */
export const number =
  (min = -Number.MAX_VALUE, max = Number.MAX_VALUE) =>
  (value, path) =>
    typeof value === "number" && value >= min && value <= max
      ? value
      : refuse(path, rangeOf("a number", min, max), value);

/**
 * @param {number} min
 * @param {number} max
 * @returns {Check}
 */
export const integer = (min, max) => (value, path) =>
  Number.isInteger(value) && value >= min && value <= max
    ? value
    : refuse(path, rangeOf("a whole number", min, max), value);

/**
 * @param {string} kind
 * @param {number} min
 * @param {number} max
 */
function rangeOf(kind, min, max) {
  if (max === Number.MAX_VALUE) return min === 0 ? `${kind}, not negative` : kind;
  return `${kind} from ${min} to ${max}`;
}

/** @param {number} max @returns {Check} */
export const text = (max) => (value, path) =>
  typeof value === "string" && value.length <= max
    ? value
    : refuse(path, `a text of at most ${max} characters`, value);

/**
 * @param {RegExp} pattern
 * @param {string} expected
 * @returns {Check}
 */
export const matching = (pattern, expected) => (value, path) =>
  typeof value === "string" && pattern.test(value) ? value : refuse(path, expected, value);

/**
 * @param {unknown} value
 * @param {string} path
 */
export const boolean = (value, path) =>
  typeof value === "boolean" ? value : refuse(path, "true or false", value);

/**
 * Check an object with any fields.
 *
 * @param {unknown} value
 * @param {string} path
 */
export const anyObject = (value, path) =>
  typeof value === "object" && value !== null && !Array.isArray(value)
    ? value
    : refuse(path, "an object", value);

/**
 * @param {unknown[]} values
 * @returns {Check}
 */
export const oneOf =
  (...values) =>
  (value, path) =>
    values.includes(value)
      ? value
      : refuse(path, values.map((each) => JSON.stringify(each)).join(" or "), value);

/** @param {Check} check @returns {Check} */
export const nullable = (check) => (value, path) => (value === null ? null : check(value, path));

/**
 * @param {Check} check
 * @param {number} max
 * @param {number} [min]
 * @returns {Check}
 */
export const list =
  (check, max, min = 0) =>
  (value, path) => {
    if (!Array.isArray(value) || value.length > max || value.length < min)
      refuse(path, `a list of ${min ? `${min} to ${max}` : `at most ${max}`}`, value);
    return value.map((/** @type {unknown} */ each, /** @type {number} */ i) => check(each, `${path}[${i}]`));
  };

/**
 * Check an object: all of `fields`, any of `optional`; a missing one takes its default, if any.
 *
 * @param {Record<string, Check>} fields
 * @param {Record<string, Check>} [optional]
 * @param {Record<string, unknown>} [defaults]
 * @returns {Check}
 */
export function record(fields, optional = {}, defaults = {}) {
  const all = new Map(Object.entries({ ...fields, ...optional }));
  return (value, path) => {
    if (value === null || typeof value !== "object" || Array.isArray(value))
      refuse(path, "an object", value);
    const unknown = strict && Object.keys(value).find((name) => !all.has(name));
    if (unknown)
      throw new BadReplay(`${path} has the field ${shown(unknown)}, which this version does not.`);
    /** @type {Record<string, unknown>} */
    const copy = {};
    for (const [name, check] of all) {
      const given = Object.hasOwn(value, name) ? value[name] : defaults[name];
      if (given === undefined && name in optional) continue;
      copy[name] = check(given, `${path}.${name}`);
    }
    return copy;
  };
}

/**
 * Check an object by the kind that its field `name` says; `kinds`: map from kind to check.
 *
 * @param {string} name
 * @param {Map<string, Check>} kinds
 * @returns {Check}
 */
export const tagged = (name, kinds) => (value, path) => {
  const check = kinds.get(value?.[name]);
  return check
    ? check(value, path)
    : refuse(`${path}.${name}`, `one of ${[...kinds.keys()].join(", ")}`, value?.[name]);
};
