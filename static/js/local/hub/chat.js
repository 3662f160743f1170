// What makes a prompt of a conversation, from a model's own files: `chat` of an export's manifest
// (gpu/text/folder.py and tokenizer.py read the same).

import { readSpecialTokens, textsOf } from "../text/special-tokens.js";

/**
 * Return {special_tokens, bos_token, eos_token, eos_ids, chat_template, tool_template}. `files`: parsed
 * JSON by name; `templates`: those that are files, by name.
 *
 * @param {TokenizerFiles} files
 * @param {Map<string, string>} templates
 * @returns {ModelChat & {tool_template: string | null}}
 */
export function chatOf(files, templates) {
  const special = textsOf(readSpecialTokens(files));
  const { bos_token: bos = null, eos_token: eos = null } = special;
  const file = files["tokenizer.json"];
  const id = eos === null || !file ? null : idOf(file, eos);
  const named = templates.size ? templates : templatesOf(files["tokenizer_config.json"]);
  return {
    special_tokens: special,
    bos_token: bos,
    eos_token: eos,
    eos_ids: id === null ? [] : [id],
    chat_template: named.get("default") ?? named.values().next().value ?? null,
    tool_template: named.get("tool_use") ?? null,
  };
}

/**
 * Return the id of a token, or null.
 *
 * @param {TokenizerFile} file
 * @param {string} token
 * @returns {number | null}
 */
function idOf({ added_tokens: added = [], model }, token) {
  const found = added.find(({ content }) => content === token);
  if (found) return found.id;
  const { vocab = {} } = model;
  if (!Array.isArray(vocab)) return /** @type {Record<string, number>} */ (vocab)[token] ?? null;
  const id = vocab.findIndex(([piece]) => piece === token);
  return id < 0 ? null : id;
}

/**
 * Return the chat templates of tokenizer_config.json by name.
 *
 * @param {TokenizerFiles["tokenizer_config.json"]} config
 * @returns {Map<string, string>}
 */
function templatesOf({ chat_template: value } = {}) {
  if (typeof value === "string") return new Map([["default", value]]);
  if (Array.isArray(value)) return new Map(value.map(({ name, template }) => [name, template]));
  return new Map(Object.entries(value ?? {}));
}
