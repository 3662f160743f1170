// The tools of the page, which run in this browser, and those of the person's own.
//
// A tool has a name, a description and a JSON schema of its parameters, as the model gets to see
// them, and `run(arguments)`, which returns the result as text or throws an Error.

import { state } from "../state.js";
import { calculate } from "./calculator.js";
import { callOwn } from "./own-tool.js";
import { search } from "./search.js";

const MOST_PASSAGES = 2;
/**
 * Characters of expressions; without it a small model writes anything between the quotation marks.
 * There is no example in the description: it would copy that.
 */
const EXPRESSION = "^[0-9a-z(][-+*/^%().,0-9a-z ]{0,59}$";

/**
 * @typedef {{name: string, label: string, description: string, parameters: object,
 *   run: (given: Record<string, unknown>) => string | Promise<string>}} PageTool
 * @type {PageTool[]}
 */
export const BUILT_IN = [
  {
    name: "calculator",
    label: "Calculator",
    description: "Compute the value of an arithmetic expression.",
    parameters: objectOf({
      expression: { type: "string", pattern: EXPRESSION },
    }),
    run: ({ expression }) => calculate(textOf(expression, "expression")),
  },
  {
    name: "clock",
    label: "Clock",
    description: "Tell the current date and time.",
    parameters: { type: "object", properties: {}, additionalProperties: false },
    run: () => new Date().toLocaleString("en-GB", { dateStyle: "full", timeStyle: "long" }),
  },
  {
    name: "search",
    label: "Search",
    description: "Find passages about a topic in the user's text.",
    parameters: objectOf({ query: { type: "string", description: "Words to look for", minLength: 2, maxLength: 60 } }),
    run: ({ query }) => searchTexts(textOf(query, "query")),
  },
];

/** @param {Record<string, object>} properties */
function objectOf(properties) {
  return { type: "object", properties, required: Object.keys(properties), additionalProperties: false };
}

/** @param {unknown} value @param {string} name */
function textOf(value, name) {
  if (typeof value === "string") return value;
  if (typeof value === "number") return String(value);
  throw new Error(`“${name}” must be a text`);
}

/** @param {string} query */
function searchTexts(query) {
  const { texts } = state.tools;
  if (!texts.length) throw new Error("there is no text to search; add one under “Tools and answer format”");
  const found = search(texts, query, MOST_PASSAGES);
  if (!found.length) return "No passage has any of these words.";
  return found.map(({ name, passage }) => `${name}: ${passage}`).join("\n\n");
}

/** All tools that can be switched on. @returns {PageTool[]} */
export const allTools = () => [
  ...BUILT_IN,
  ...state.tools.own.map((tool) => ({ ...tool, label: tool.name, run: (/** @type {object} */ given) => callOwn(tool, given) })),
];

/** The tools that are switched on. */
export const activeTools = () => allTools().filter(({ name }) => state.tools.on.includes(name));

/** The tools that are switched on, as the model gets to see them. @returns {FromPage.Tool[]} */
export const describedTools = () =>
  activeTools().map(({ name, description, parameters }) => ({
    type: "function",
    function: { name, description, parameters: /** @type {Record<string, any>} */ (parameters) },
  }));

/**
 * Run a call. Returns {content, ms, failed}: the result, or what was wrong, in words for the model and
 * the person alike.
 *
 * @param {ToPage.CalledTool} call
 */
export async function runTool({ name, arguments: text }) {
  const began = performance.now();
  const [content, failed] = await resultOf(name, text).then(
    (result) => /** @type {const} */ ([result, false]),
    (error) => /** @type {const} */ ([`Error: ${error.message}`, true]),
  );
  return { content, failed, ms: performance.now() - began };
}

/** @param {string} name @param {string} text */
async function resultOf(name, text) {
  const tool = activeTools().find((each) => each.name === name);
  if (!tool) throw new Error(`there is no tool “${name}”; there are: ${activeTools().map((each) => each.name).join(", ") || "none"}`);
  return tool.run(argumentsOf(text));
}

/** @param {string} text @returns {Record<string, unknown>} */
function argumentsOf(text) {
  let value;
  try {
    value = JSON.parse(text || "{}");
  } catch (error) {
    throw new Error(`the arguments are not JSON: ${/** @type {Error} */ (error).message}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new Error("the arguments must be an object");
  return value;
}
