// @ts-nocheck
// Messages of the page, read by the protocol's JSON schema (net/protocol-schema.json) as the server
// reads them (app/ws/incoming.py): with the same defaults, and refused in the same words.

const ID = /^[A-Za-z0-9_-]{1,64}$/;
const DIGITS = /^\d+$/;
/** JSON type → what the server calls it, and the kinds of values that it takes. */
const SCALARS = {
  string: ["str", "str"],
  integer: ["int", "int"],
  number: ["float", "int", "float"],
  boolean: ["bool", "bool"],
};

/** A message that cannot be read. `param`: the field that is wrong. */
class BadMessage extends Error {
  constructor(message, param = "") {
    super(message);
    this.param = param;
  }
}

function fail(what, path) {
  const where = path === "$" ? "" : ` - at \`${path}\``;
  const param = /^\$\.(?:question\.)?(?:params\.)?([\w.]+)/.exec(path)?.[1] ?? "";
  throw new BadMessage(`cannot read this message: ${what}${where}`, param);
}

function kindOf(value) {
  if (value === null || value === undefined) return "null";
  if (Array.isArray(value)) return "array";
  if (typeof value === "number") return Number.isInteger(value) ? "int" : "float";
  return { boolean: "bool", string: "str", bigint: "int" }[typeof value] ?? "object";
}

function expectKind(value, path, kinds, expected) {
  if (!kinds.includes(kindOf(value)))
    fail(`Expected \`${expected}\`, got \`${kindOf(value)}\``, path);
  return value;
}

/** Reader of the page's messages. `schema`: `from_page` of the protocol's schemas. */
export class MessageReader {
  constructor(schema) {
    this.schema = schema;
  }

  /**
   * Return {message} with all defaults filled in, or {error}, the `error` message to answer with.
   */
  read(raw) {
    try {
      return { message: this.message(raw) };
    } catch (error) {
      if (!(error instanceof BadMessage)) throw error;
      const id = typeof raw?.id === "string" && ID.test(raw.id) ? raw.id : "";
      const request = Number.isInteger(raw?.request) ? raw.request : null;
      const { message, param } = error;
      return { error: { type: "error", code: "bad_message", message, id, param, request } };
    }
  }

  message(raw) {
    const found = this.value(this.schema, withSeed(raw), "$");
    if (found.id !== undefined && !ID.test(found.id))
      throw new BadMessage("id must be 1 to 64 characters of [A-Za-z0-9_-]", "id");
    return found;
  }

  /** Return a value with its defaults. `or`: what errors add to the type that was expected. */
  value(schema, value, path, or = "") {
    if (schema.$ref) return this.value(this.definition(schema.$ref), value, path, or);
    if (schema.discriminator) return this.variant(schema.discriminator, value, path);
    if (schema.anyOf) return this.choice(schema.anyOf, value, path);
    if (schema.enum) return oneOf(schema.enum, value, path);
    if (schema.type === "array") {
      expectKind(value, path, ["array"], `array${or}`);
      return value.map((item, i) => this.value(schema.items, item, `${path}[${i}]`));
    }
    if (schema.type === "object") return this.object(schema, value, path, or);
    const [name, ...kinds] = SCALARS[schema.type];
    return expectKind(value, path, kinds, name + or);
  }

  definition(reference) {
    return this.schema.$defs[reference.split("/").at(-1)];
  }

  /** Return a value of one of several types, which may be null. */
  choice(schemas, value, path) {
    const some = schemas.filter(({ type }) => type !== "null");
    if (some.length < schemas.length && value === null) return null;
    if (some.length === 1) return this.value(some[0], value, path, " | null");
    const scalars = some.map(({ type }) => SCALARS[type]);
    const names = scalars.map(([name]) => name).join(" | ");
    return expectKind(
      value,
      path,
      scalars.flatMap(([, ...kinds]) => kinds),
      names,
    );
  }

  /** Return an object whose type is named by one of its fields. */
  variant({ propertyName: tag, mapping }, value, path) {
    expectKind(value, path, ["object"], "object");
    if (!Object.hasOwn(value, tag)) fail(`Object missing required field \`${tag}\``, path);
    if (typeof value[tag] !== "string") fail("Expected `str`", `${path}.${tag}`);
    if (!Object.hasOwn(mapping, value[tag]))
      fail(`Invalid value '${value[tag]}'`, `${path}.${tag}`);
    return this.object(this.definition(mapping[value[tag]]), value, path);
  }

  object({ properties, required = [], additionalProperties: others }, value, path, or = "") {
    expectKind(value, path, ["object"], `object${or}`);
    const found = {};
    for (const [name, { default: initial }] of Object.entries(properties ?? {}))
      if (initial !== undefined) found[name] = structuredClone(initial);
    for (const [name, each] of Object.entries(value)) {
      const known = properties && Object.hasOwn(properties, name);
      if (!known && !others) fail(`Object contains unknown field \`${name}\``, path);
      found[name] = known
        ? this.value(properties[name], each, `${path}.${name}`)
        : this.value(others, each, `${path}[...]`);
    }
    for (const name of required)
      if (!Object.hasOwn(value, name)) fail(`Object missing required field \`${name}\``, path);
    return found;
  }
}

function oneOf(names, value, path) {
  expectKind(value, path, ["str"], "str");
  if (!names.includes(value)) fail(`Invalid enum value '${value}'`, path);
  return value;
}

/** Seeds have 64 bits, so the page has them as digits; here they are BigInts. */
function withSeed(raw) {
  if (raw?.question?.params) return { ...raw, question: withSeed(raw.question) };
  const seed = raw?.params?.seed;
  if (typeof seed !== "string" || !DIGITS.test(seed)) return raw;
  return { ...raw, params: { ...raw.params, seed: BigInt(seed) } };
}
