// The fields of a request that say what its answer must follow and which tools it may call, from the
// page's answer format and tools.

import { isLocal } from "../net/connection.js";
import { state } from "../state.js";
import { describedTools } from "../tools/tools.js";

/** Why neither a format nor tools can be used, or "". */
export const whyNoOptions = () =>
  isLocal() ? "Tools and answer formats need the server: the model runs in this browser." : "";

/** The tools that the next answer may call. */
export const offeredTools = () =>
  state.mode === "chat" && !state.format.kind && !whyNoOptions() ? describedTools() : [];

/** {tools} of a prompt that is counted or shown as tokens; {} without any. */
export function toolsField() {
  const tools = offeredTools();
  return tools.length ? { tools } : {};
}

/**
 * Return {grammar}, {tools, tool_choice} or {}. `answersPerson`: the last message is the person's; the
 * model is not required to call a tool again after it has the results.
 *
 * @param {boolean} answersPerson
 * @returns {Pick<Partial<RunRequest>, "grammar" | "tools" | "tool_choice">}
 */
export function answerFields(answersPerson) {
  if (whyNoOptions()) return {};
  if (state.format.kind) return { grammar: grammarOf(state.format) };
  const found = toolsField();
  if (!found.tools || !state.tools.must || !answersPerson) return found;
  return { ...found, tool_choice: "required" };
}

/**
 * Return the grammar of a format. One of several texts is a terminal of Lark, as on the server
 * (app/openai/structured_outputs.py).
 *
 * @param {AnswerFormat} format
 * @returns {FromPage.Grammar}
 */
function grammarOf({ kind, text }) {
  if (kind !== "choice") return { kind: /** @type {"regex" | "json_schema"} */ (kind), text };
  const choices = choicesOf(text).map((each) => JSON.stringify(each));
  return { kind: "lark", text: `start: CHOICE\nCHOICE: ${choices.join(" | ")}` };
}

/** The choices that were typed, one a line. @param {string} text */
export const choicesOf = (text) =>
  text.split("\n").map((line) => line.trim()).filter((line) => line);

/**
 * Return why a format cannot be used, or "". The server says what else is wrong with it.
 *
 * @param {AnswerFormat} format
 */
export function whyNotFormat({ kind, text }) {
  if (!kind) return "";
  if (kind === "choice") return choicesOf(text).length ? "" : "Write the possible answers, one per line.";
  if (!text.trim()) return kind === "regex" ? "Write a regular expression." : "Write a JSON schema.";
  if (kind === "regex") return "";
  try {
    const schema = JSON.parse(text);
    if (typeof schema === "object" && schema !== null && !Array.isArray(schema)) return "";
    return "A JSON schema is an object, such as {\"type\": \"object\"}.";
  } catch (error) {
    return `The schema is not JSON: ${/** @type {Error} */ (error).message}.`;
  }
}
