// Messages of the page, read by the protocol's JSON schema (net/protocol-schema.json) as the server
// reads them (app/ws/incoming.py): with the same defaults, and refused in the same words.

const ID = /^[A-Za-z0-9_-]{1,64}$/;
const DIGITS = /^\d+$/;
/**
 * JSON type → what the server calls it, and the kinds of values that it takes.
 *
 * @type {Record<string, string[]>}
 */
const SCALARS = {
  string: ["str", "str"],
  integer: ["int", "int"],
  number: ["float", "int", "float"],
  boolean: ["bool", "bool"],
};

const KINDS = new Map([
  ["boolean", "bool"],
  ["string", "str"],
  ["bigint", "int"],
]);

/** A message that cannot be read. `param`: the field that is wrong. */
class BadMessage extends Error {
  /** @param {string} message @param {string} [param] */
  constructor(message, param = "") {
    super(message);
    this.param = param;
  }
}

/** @param {string} what @param {string} path @returns {never} */
function fail(what, path) {
  const where = path === "$" ? "" : ` - at \`${path}\``;
  const param = /^\$\.(?:question\.)?(?:params\.)?([\w.]+)/.exec(path)?.[1] ?? "";
  throw new BadMessage(`cannot read this message: ${what}${where}`, param);
}

/** @param {unknown} value */
function kindOf(value) {
  if (value === null || value === undefined) return "null";
  if (Array.isArray(value)) return "array";
  if (typeof value === "number") return Number.isInteger(value) ? "int" : "float";
  return KINDS.get(typeof value) ?? "object";
}

/** @param {unknown} value @param {string} path @param {string[]} kinds @param {string} expected */
function expectKind(value, path, kinds, expected) {
  if (!kinds.includes(kindOf(value)))
    fail(`Expected \`${expected}\`, got \`${kindOf(value)}\``, path);
  return value;
}

/**
 * @param {unknown} value
 * @param {string} path
 * @param {string} expected
 * @returns {Record<string, unknown>}
 */
function expectObject(value, path, expected) {
  return isObject(value) ? value : fail(`Expected \`${expected}\`, got \`${kindOf(value)}\``, path);
}

/** @param {unknown} value @returns {value is Record<string, unknown>} */
const isObject = (value) => kindOf(value) === "object";

/** Reader of the page's messages. */
export class MessageReader {
  /** `schema`: `from_page` of the protocol's schemas. @param {JsonSchema} schema */
  constructor(schema) {
    this.schema = schema;
  }

  /**
   * Return {message} with all defaults filled in, or {error}, the `error` message to answer with.
   *
   * @param {unknown} raw
   * @returns {{message: Read.Any, error?: undefined} | {error: ToPage.Error, message?: undefined}}
   */
  read(raw) {
    try {
      return { message: this.message(raw) };
    } catch (error) {
      if (!(error instanceof BadMessage)) throw error;
      const { message, param } = error;
      return { error: { type: "error", code: "bad_message", message, param, ...answering(raw) } };
    }
  }

  /** @param {unknown} raw */
  message(raw) {
    const found = /** @type {Read.Any} */ (this.value(this.schema, withSeed(raw), "$"));
    if ("id" in found && !ID.test(found.id))
      throw new BadMessage("id must be 1 to 64 characters of [A-Za-z0-9_-]", "id");
    return found;
  }

  /**
   * Return a value with its defaults. `or`: what errors add to the type that was expected.
   *
   * @param {JsonSchema} schema
   * @param {unknown} value
   * @param {string} path
   * @param {string} [or]
   * @returns {unknown}
   */
  value(schema, value, path, or = "") {
    if (schema.$ref) return this.value(this.definition(schema.$ref), value, path, or);
    if (schema.discriminator) return this.variant(schema.discriminator, value, path);
    if (schema.anyOf) return this.choice(schema.anyOf, value, path);
    if (schema.enum) return oneOf(schema.enum, value, path);
    if (schema.type === "array") {
      const { items = {} } = schema;
      if (!Array.isArray(value)) return fail(`Expected \`array${or}\`, got \`${kindOf(value)}\``, path);
      return value.map((item, i) => this.value(items, item, `${path}[${i}]`));
    }
    if (schema.type === "object") return this.object(schema, value, path, or);
    const [name, ...kinds] = SCALARS[schema.type ?? ""];
    return expectKind(value, path, kinds, name + or);
  }

  /** @param {string} reference */
  definition(reference) {
    return this.schema.$defs?.[reference.slice(reference.lastIndexOf("/") + 1)] ?? {};
  }

  /**
   * Return a value of one of several types, which may be null.
   *
   * @param {JsonSchema[]} schemas
   * @param {unknown} value
   * @param {string} path
   */
  choice(schemas, value, path) {
    const some = schemas.filter(({ type }) => type !== "null");
    if (some.length < schemas.length && value === null) return null;
    if (some.length === 1) return this.value(some[0], value, path, " | null");
    const scalars = some.map(({ type = "" }) => SCALARS[type]);
    const names = scalars.map(([name]) => name).join(" | ");
    return expectKind(
      value,
      path,
      scalars.flatMap(([, ...kinds]) => kinds),
      names,
    );
  }

  /**
   * Return an object whose type is named by one of its fields.
   *
   * @param {NonNullable<JsonSchema["discriminator"]>} discriminator
   * @param {unknown} value
   * @param {string} path
   */
  variant({ propertyName: tag, mapping }, value, path) {
    const given = expectObject(value, path, "object");
    if (!Object.hasOwn(given, tag)) fail(`Object missing required field \`${tag}\``, path);
    const name = given[tag];
    if (typeof name !== "string") return fail("Expected `str`", `${path}.${tag}`);
    if (!Object.hasOwn(mapping, name)) fail(`Invalid value '${name}'`, `${path}.${tag}`);
    return this.object(this.definition(mapping[name]), value, path);
  }

  /** @param {JsonSchema} schema @param {unknown} value @param {string} path @param {string} [or] */
  object({ properties, required = [], additionalProperties: others }, value, path, or = "") {
    const given = expectObject(value, path, `object${or}`);
    if (!properties && !others) return given; // any JSON, such as the schema of a tool
    /** @type {Record<string, unknown>} */
    const found = {};
    for (const [name, { default: initial }] of Object.entries(properties ?? {}))
      if (initial !== undefined) found[name] = structuredClone(initial);
    for (const [name, each] of Object.entries(given)) {
      if (properties && Object.hasOwn(properties, name))
        found[name] = this.value(properties[name], each, `${path}.${name}`);
      else if (others) found[name] = this.value(others, each, `${path}[...]`);
      else fail(`Object contains unknown field \`${name}\``, path);
    }
    for (const name of required)
      if (!Object.hasOwn(given, name)) fail(`Object missing required field \`${name}\``, path);
    return found;
  }
}

/** What of a message that cannot be read says what it is about. @param {unknown} raw */
export function answering(raw) {
  const { id, request } = isObject(raw) ? raw : {};
  return {
    id: typeof id === "string" && ID.test(id) ? id : "",
    request: typeof request === "number" && Number.isInteger(request) ? request : null,
  };
}

/** @param {unknown[]} names @param {unknown} value @param {string} path */
function oneOf(names, value, path) {
  expectKind(value, path, ["str"], "str");
  if (!names.includes(value)) fail(`Invalid enum value '${value}'`, path);
  return value;
}

/**
 * Seeds have 64 bits, so the page has them as digits; here they are BigInts.
 *
 * @param {unknown} raw
 * @returns {unknown}
 */
function withSeed(raw) {
  if (!isObject(raw)) return raw;
  const { question, params } = raw;
  if (isObject(question) && question.params) return { ...raw, question: withSeed(question) };
  if (!isObject(params) || typeof params.seed !== "string" || !DIGITS.test(params.seed)) return raw;
  return { ...raw, params: { ...params, seed: BigInt(params.seed) } };
}
