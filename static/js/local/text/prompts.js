// Token ids of a prompt: plain text, chat messages, or ids (app/prompt/prompts.py).

import { InvalidRequest } from "../shared/errors.js";
import { escaped, unusedMark } from "./chat-template.js";

/** @typedef {import("./chat-template.js").ChatTemplate} ChatTemplate */

/**
 * Return the token ids of exactly one of `prompt`, `messages` and `ids`.
 *
 * Names of special tokens are special tokens in a prompt, but plain text in messages, so that the
 * content of a message cannot end its turn or begin another one. Throws InvalidRequest.
 *
 * @param {PieceTokenizer} tokenizer
 * @param {ChatTemplate} template
 * @param {{prompt?: string | null, messages?: FromPage.Message[] | null, ids?: number[] | null, continueFinal?: boolean}} given
 */
export function promptIds(
  tokenizer,
  template,
  { prompt = null, messages = null, ids = null, continueFinal = false },
) {
  if ([prompt, messages, ids].filter((given) => given !== null).length !== 1)
    throw new InvalidRequest("expected exactly one of prompt, messages and ids", "prompt");
  expectMessages(messages, continueFinal);
  if (messages !== null) {
    const { parts } = renderPrompt(tokenizer, template, messages, continueFinal);
    return encodeParts(tokenizer, parts).flat();
  }
  const result = prompt !== null ? tokenizer.encode(prompt) : [...(ids ?? [])];
  if (!result.length)
    throw new InvalidRequest(
      "the prompt is empty, but this model needs at least one token to start from",
      prompt === null ? "ids" : "prompt",
    );
  return result;
}

/**
 * Throw InvalidRequest for `continueFinal` without messages.
 *
 * @param {FromPage.Message[] | null | undefined} messages
 * @param {boolean | undefined} continueFinal
 */
export function expectMessages(messages, continueFinal) {
  if (continueFinal && !messages)
    throw new InvalidRequest(
      "continue_final applies to messages only; leave it out, or send messages",
      "continue_final",
    );
}

/** Return the ids of each part of one text. @param {PieceTokenizer} tokenizer @param {PromptPart[]} parts */
export function encodeParts(tokenizer, parts) {
  let inside = false;
  return parts.map(({ text, specials }) => {
    const ids = tokenizer.encode(text, { bos: false, specials, inside });
    inside ||= text !== "";
    return ids;
  });
}

/**
 * Render a conversation in parts {text, specials}: {parts, names, mark}.
 *
 * Names of special tokens in contents get a mark inside before rendering, so that the unmarked
 * names in the result are the template's own. The text between those is then encoded with special
 * tokens off. If there is no such name, the result is one part and `mark` is "".
 *
 * @param {PieceTokenizer} tokenizer
 * @param {ChatTemplate} template
 * @param {FromPage.Message[]} messages
 * @param {boolean} continueFinal
 * @returns {RenderedPrompt}
 */
export function renderPrompt(tokenizer, template, messages, continueFinal) {
  const texts = [...new Set(messages.map(({ content }) => content))];
  const names = specialNames(tokenizer, texts);
  const mark = names.size ? unusedMark(texts) : "";
  const marked = messages.map(({ role, content }) => ({
    role,
    content: markNames(content, names, mark),
  }));
  const text = template.render(marked, { continueFinal });
  if (!names.size) return { parts: [{ text, specials: true }], names, mark };
  const pieces = splitAtNames(text, specialNames(tokenizer, [text]));
  const parts = pieces.map((piece, i) => ({
    text: removeMark(piece, mark),
    specials: i % 2 === 1,
  }));
  return { parts, names, mark };
}

/**
 * Return the names of special tokens that occur in `texts`.
 *
 * @param {PieceTokenizer} tokenizer
 * @param {string[]} texts
 */
function specialNames(tokenizer, texts) {
  /** @type {Set<string>} */
  const names = new Set();
  for (const text of texts)
    for (const id of new Set(tokenizer.encode(text, { bos: false }))) {
      const name = tokenizer.isSpecial(id) ? tokenizer.piece(id) : null;
      if (name !== null && text.includes(name)) names.add(name);
    }
  return names;
}

/** @param {Set<string>} names */
const longestFirst = (names) => [...names].sort((a, b) => b.length - a.length);

/**
 * Return `text` with a mark after the first character of every name in `names`.
 *
 * @param {string} text
 * @param {Set<string>} names
 * @param {string} mark
 */
export function markNames(text, names, mark) {
  let marked = text;
  for (const name of longestFirst(names)) {
    const [first] = name;
    marked = marked.replaceAll(name, () => first + mark + name.slice(first.length));
  }
  return marked;
}

/**
 * Return `text` without marks, also where a template has escaped them.
 *
 * @param {string} text
 * @param {string} mark
 */
const removeMark = (text, mark) => text.replaceAll(mark, "").replaceAll(escaped(mark), "");

/**
 * Split `text` at `names` into text, name, text, name, … text.
 *
 * @param {string} text
 * @param {Set<string>} names
 */
function splitAtNames(text, names) {
  if (!names.size) return [text];
  const pattern = longestFirst(names).map((name) => name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
  return text.split(new RegExp(`(${pattern.join("|")})`));
}
