// The check of a replay file, made from the JSON schema that the server writes into the page
// (app/protocol/replay_format.py) and from the checks across fields in runs.js.

import {
  anyObject,
  BadReplay,
  boolean,
  integer,
  list,
  matching,
  nullable,
  number,
  oneOf,
  only,
  record,
  tagged,
  text,
} from "./field-checks.js";
import { pageData } from "../ui/page-data.js";
import { checkSummaries, checkTurn } from "./runs.js";

/** @typedef {import("./field-checks.js").Check} Check */

const SCHEMA = pageData("replay-schema");
const DEFINITIONS = SCHEMA.$defs;
const { format, version } = DEFINITIONS.Replay.properties;

export const [FORMAT] = format.enum;
const VERSIONS = version.enum;

/** Longest text and list where the schema names no length. */
const MAX_LENGTH = 2 ** 24;

/** Checks of the definitions by name, made when first needed. @type {Map<string, Check>} */
const checks = new Map();

/** @param {string} name */
function checkOf(name) {
  const check = checks.get(name) ?? compile(DEFINITIONS[name]);
  checks.set(name, check);
  return check;
}

/** @param {JsonSchema} schema */
const isNull = ({ type }) => type === "null";
/** @param {string} ref */
const nameIn = (ref) => ref.slice(ref.lastIndexOf("/") + 1);

/**
 * Make the check of a schema. It may have the keywords that msgspec emits, and no others.
 *
 * @param {JsonSchema} schema
 * @returns {Check}
 */
function compile(schema) {
  if (schema.$ref) {
    const name = nameIn(schema.$ref);
    return (value, path) => checkOf(name)(value, path);
  }
  if (schema.anyOf) return compileUnion(schema);
  if (schema.enum) return oneOf(...schema.enum);
  const { minimum, maximum, maxLength, pattern, description, minItems, maxItems } = schema;
  switch (schema.type) {
    case "boolean":
      return boolean;
    case "integer":
      return integer(minimum ?? 0, maximum ?? Number.MAX_SAFE_INTEGER);
    case "number":
      return number(minimum, maximum);
    case "string":
      if (pattern) return matching(new RegExp(pattern), description ?? "");
      return text(maxLength ?? MAX_LENGTH);
    case "array":
      return list(compile(schema.items ?? {}), maxItems ?? MAX_LENGTH, minItems);
    case "object":
      return compileObject(schema);
    default:
      throw new Error(`The schema of replays has an unknown type: ${JSON.stringify(schema)}`);
  }
}

/** Make the check of an object; one without named properties, such as a tool's schema, is any JSON. @param {JsonSchema} schema */
function compileObject({ properties, required = [] }) {
  if (!properties) return anyObject;
  /** @type {[Record<string, Check>, Record<string, Check>, Record<string, unknown>]} */
  const [fields, optional, defaults] = [{}, {}, {}];
  for (const [name, schema] of Object.entries(properties)) {
    (required.includes(name) ? fields : optional)[name] = compile(schema);
    if (schema.default !== undefined) defaults[name] = schema.default;
  }
  return record(fields, optional, defaults);
}

/**
 * @param {JsonSchema} schema
 * @returns {Check}
 */
function compileUnion({ anyOf = [], discriminator }) {
  if (discriminator) {
    const kinds = Object.entries(discriminator.mapping);
    const made = new Map(kinds.map(([kind, $ref]) => [kind, compile({ $ref })]));
    return tagged(discriminator.propertyName, made);
  }
  const others = anyOf.filter((each) => !isNull(each));
  if (others.length !== 1 || others.length === anyOf.length)
    throw new Error(`The schema of replays has an unknown union: ${JSON.stringify(anyOf)}`);
  return nullable(compile(others[0]));
}

/**
 * Return a checked copy of a part of a file, without the fields that its definition `name` has not.
 *
 * @param {string} name
 * @param {unknown} value
 */
export const onlyFieldsOf = (name, value) => only(checkOf(name), value, name);

/**
 * Return a checked copy of a replay. Throws BadReplay for the first field that is wrong.
 *
 * @param {unknown} value
 * @param {string} [path]
 */
export function validateReplay(value, path = "replay") {
  const { format: its = null, version: of } = /** @type {Partial<ReplayFile.Replay>} */ (value ?? {});
  if (its !== FORMAT)
    throw new BadReplay(`This is not a replay: it does not begin with {"format": "${FORMAT}", …}.`);
  if (!VERSIONS.includes(of))
    throw new BadReplay(
      `This replay is of version ${String(of).slice(0, 20)}; this page reads versions ` +
        `${VERSIONS[0]} to ${VERSIONS.at(-1)}. Open it with the Tokenglass that saved it, or a ` +
        "newer one.",
    );
  /** @type {ReplayFile.Replay} */
  const checked = checkOf("Replay")(value, path);
  if (checked.turns.at(-1)?.role !== "model")
    throw new BadReplay(`${path}.turns must end with an answer of the model.`);
  checked.turns.forEach((each, i) => checkTurn(each, checked.hello, `${path}.turns[${i}]`));
  checkSummaries(checked.turns, `${path}.turns`);
  return checked;
}
