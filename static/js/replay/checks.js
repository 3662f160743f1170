// Checks of what was read from a file. Each check takes a value and where it stands, and returns a
// copy that holds nothing but what it names, or throws a BadReplay that says what is wrong there.

/** Thrown for a file that is no replay, or not a sound one; the message is for people. */
export class BadReplay extends Error {}

/** What is not named: refused in a file that is opened, left out of one that is saved. */
let strict = true;

/** Take what `check` names of `value`, and leave out the rest. */
export function only(check, value, path) {
  strict = false;
  try {
    return check(value, path);
  } finally {
    strict = true;
  }
}

const MOST_SHOWN = 40;

/** A value in a few characters, for a message. */
function shown(value) {
  if (value === undefined) return "missing";
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (value !== null && typeof value === "object") return "an object";
  const text = JSON.stringify(value) ?? String(value);
  return text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}…` : text;
}

export function refuse(path, expected, value) {
  const is = value === undefined ? "is missing" : `is ${shown(value)}`;
  throw new BadReplay(`${path} ${is}, but must be ${expected}.`);
}

/** A finite number. JSON has no others, but 1e999 is read as infinity. */
export const number =
  (least = -Number.MAX_VALUE, most = Number.MAX_VALUE) =>
  (value, path) =>
    typeof value === "number" && value >= least && value <= most
      ? value
      : refuse(path, rangeOf("a number", least, most), value);

export const integer = (least, most) => (value, path) =>
  Number.isInteger(value) && value >= least && value <= most
    ? value
    : refuse(path, rangeOf("a whole number", least, most), value);

function rangeOf(kind, least, most) {
  if (most === Number.MAX_VALUE) return least === 0 ? `${kind}, not negative` : kind;
  return `${kind} from ${least} to ${most}`;
}

export const text = (most) => (value, path) =>
  typeof value === "string" && value.length <= most
    ? value
    : refuse(path, `a text of at most ${most} characters`, value);

export const matching = (pattern, expected) => (value, path) =>
  typeof value === "string" && pattern.test(value) ? value : refuse(path, expected, value);

export const flag = (value, path) =>
  typeof value === "boolean" ? value : refuse(path, "true or false", value);

export const oneOf =
  (...values) =>
  (value, path) =>
    values.includes(value)
      ? value
      : refuse(path, values.map((each) => JSON.stringify(each)).join(" or "), value);

export const nullable = (check) => (value, path) => (value === null ? null : check(value, path));

export const list =
  (check, most, least = 0) =>
  (value, path) => {
    if (!Array.isArray(value) || value.length > most || value.length < least)
      refuse(path, `a list of ${least ? `${least} to ${most}` : `at most ${most}`}`, value);
    return value.map((each, i) => check(each, `${path}[${i}]`));
  };

/** An object with all of `fields`, and any of `more`. */
export function record(fields, more = {}) {
  const all = new Map(Object.entries({ ...fields, ...more }));
  return (value, path) => {
    if (value === null || typeof value !== "object" || Array.isArray(value))
      refuse(path, "an object", value);
    const unknown = strict && Object.keys(value).find((name) => !all.has(name));
    if (unknown)
      throw new BadReplay(`${path} has the field ${shown(unknown)}, which this version does not.`);
    const copy = {};
    for (const [name, check] of all) {
      const given = Object.hasOwn(value, name) ? value[name] : undefined;
      if (given === undefined && name in more) continue;
      copy[name] = check(given, `${path}.${name}`);
    }
    return copy;
  };
}

/** An object whose field `name` says which of `kinds` it is; `more`: what each may have as well. */
export function tagged(name, kinds, more = {}) {
  const one = (kind) => record({ [name]: oneOf(kind), ...kinds[kind] }, more[kind]);
  const checks = new Map(Object.keys(kinds).map((kind) => [kind, one(kind)]));
  return (value, path) => {
    const check = checks.get(value?.[name]);
    return check
      ? check(value, path)
      : refuse(`${path}.${name}`, `one of ${[...checks.keys()].join(", ")}`, value?.[name]);
  };
}
