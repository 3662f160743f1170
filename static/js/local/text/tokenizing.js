// Answers to `tokenize`: the tokens of a text as the engine gets them, and as bytes; and to
// `segment` (app/prompt/tokenizing.py).

import { InvalidRequest } from "../shared/errors.js";
import { findMessageSpans } from "./message-spans.js";
import { encodeParts, expectMessages, promptIds, renderPrompt } from "./prompts.js";
import { countChars, countWords } from "./python-text.js";
import { namedIds } from "./segmentation.js";
import { decodeUtf8 } from "./utf8-decoder.js";

/** @typedef {import("./chat-template.js").ChatTemplate} ChatTemplate */

const utf8 = new TextEncoder();

/**
 * Tokenizer without a vocabulary, for comparison: every byte of UTF-8 is a token.
 *
 * @type {PieceTokenizer}
 */
const BYTES = {
  encode: (text) => [...utf8.encode(text)],
  piece: (id) => decodeUtf8(Uint8Array.of(id)),
  tokenBytes: (id) => Uint8Array.of(id),
  isSpecial: () => false,
};

/**
 * Return the `tokenized` message for a `tokenize` message. `name`: of the model.
 *
 * @param {PieceTokenizer} tokenizer
 * @param {ChatTemplate} template
 * @param {string} name
 * @param {FromPage.Tokenize} message
 * @returns {ToPage.Tokenized}
 */
export function tokenized(tokenizer, template, name, message) {
  const { rendered, tokens, unplaced, plain } = tokenize(tokenizer, template, message);
  return {
    type: "tokenized",
    request: message.request,
    rendered,
    tokens,
    unplaced,
    n_chars: countChars(plain),
    n_bytes: utf8.encode(plain).length,
    n_words: countWords(plain),
    plain: tokenization(name, tokenizer, plain),
    compare: tokenization("bytes", BYTES, plain),
  };
}

/**
 * Return the `segmented` message for a `segment` message.
 *
 * @param {import("./tokenizer.js").LocalTokenizer} tokenizer
 * @param {FromPage.Segment} message
 * @returns {ToPage.Segmented}
 */
export function segmented(tokenizer, { request, text }) {
  const { algorithm, words } = tokenizer.segment(text);
  const pieces = namedIds(words).map((id) => piece(tokenizer, id));
  return { type: "segmented", algorithm, words, request, pieces };
}

/** @param {PieceTokenizer} tokenizer @param {ChatTemplate} template @param {FromPage.Tokenize} message */
function tokenize(tokenizer, template, message) {
  const { prompt = null, messages = null, text = null, continue_final: continueFinal = false } = message;
  if ([prompt, messages, text].filter((given) => given !== null).length !== 1)
    throw new InvalidRequest("expected exactly one of prompt, messages and text", "prompt");
  expectMessages(messages, continueFinal);
  if (messages !== null) return conversation(tokenizer, template, messages, continueFinal);
  const whole = prompt ?? text ?? "";
  const ids =
    prompt !== null
      ? promptIds(tokenizer, template, { prompt })
      : tokenizer.encode(whole, { bos: false, specials: false });
  const tokens = ids.map((id) => promptPiece(tokenizer, id, null, ""));
  return { rendered: whole, tokens, unplaced: [], plain: whole };
}

/**
 * @param {PieceTokenizer} tokenizer
 * @param {ChatTemplate} template
 * @param {FromPage.Message[]} messages
 * @param {boolean} continueFinal
 */
function conversation(tokenizer, template, messages, continueFinal) {
  const prompt = renderPrompt(tokenizer, template, messages, continueFinal);
  const { spans, unplaced } = findMessageSpans(template, messages, continueFinal, prompt);
  /** @type {ToPage.PromptPiece[]} */
  const tokens = [];
  let start = 0;
  encodeParts(tokenizer, prompt.parts).forEach((ids, part) => {
    const { text } = prompt.parts[part];
    const places = placesOf(tokenizer, text, ids);
    ids.forEach((id, i) => {
      const [first, end] = places?.[i] ?? [0, 0];
      const message = places ? messageAt(spans, start + first, start + end) : null;
      const role = message === null ? "" : messages[message].role;
      tokens.push(promptPiece(tokenizer, id, message, role));
    });
    start += text.length;
  });
  return {
    rendered: prompt.parts.map(({ text }) => text).join(""),
    tokens,
    unplaced,
    plain: messages.map(({ content }) => content).join("\n"),
  };
}

/**
 * Return the first message that shares a character with [first, end), or null.
 *
 * @param {MessageSpan[]} spans
 * @param {number} first
 * @param {number} end
 */
function messageAt(spans, first, end) {
  return spans.find(([, start, stop]) => first < stop && start < end)?.[0] ?? null;
}

/**
 * Return the characters of `text` that each token contains or shares: [first, end). null if the
 * tokens do not spell the text, because the tokenizer changes it before it splits it.
 *
 * @param {PieceTokenizer} tokenizer
 * @param {string} text
 * @param {number[]} ids
 */
function placesOf(tokenizer, text, ids) {
  const data = ids.map((id) =>
    tokenizer.isSpecial(id) ? utf8.encode(tokenizer.piece(id)) : tokenizer.tokenBytes(id),
  );
  const { charOf, bytes } = charactersOf(text);
  const total = data.reduce((sum, each) => sum + each.length, 0);
  const extra = total - bytes.length; // a space that the tokenizer puts in front
  if (extra !== 0 && extra !== 1) return null;
  let at = -extra;
  const places = [];
  for (const each of data) {
    for (let i = 0; i < each.length; i += 1)
      if (at + i >= 0 ? each[i] !== bytes[at + i] : each[i] !== 0x20) return null;
    const end = at + each.length;
    const first = charOf[Math.max(0, at)];
    places.push(end > Math.max(0, at) ? [first, charOf[end - 1] + 1] : [first, first]);
    at = end;
  }
  return places;
}

/** Return the bytes of a text, and for each byte the index of its character. @param {string} text */
function charactersOf(text) {
  const bytes = utf8.encode(text);
  const charOf = new Uint32Array(bytes.length + 1);
  let byte = 0;
  let at = 0;
  for (const char of text) {
    const n = utf8.encode(char).length;
    charOf.fill(at, byte, byte + n);
    byte += n;
    at += char.length;
  }
  charOf[byte] = at;
  return { charOf, bytes };
}

/**
 * @param {PieceTokenizer} tokenizer
 * @param {number} id
 * @param {number | null} message
 * @param {string} role
 */
function promptPiece(tokenizer, id, message, role) {
  return { ...piece(tokenizer, id), role, message };
}

/** @param {PieceTokenizer} tokenizer @param {number} id */
function piece(tokenizer, id) {
  const bytes = Array.from(tokenizer.tokenBytes(id), (byte) => byte.toString(16).padStart(2, "0"));
  return { id, text: tokenizer.piece(id), bytes: bytes.join(""), special: tokenizer.isSpecial(id) };
}

/**
 * Return the tokens of a plain text: none is added, and names of special tokens are text.
 *
 * @param {string} name
 * @param {PieceTokenizer} tokenizer
 * @param {string} text
 */
function tokenization(name, tokenizer, text) {
  const ids = tokenizer.encode(text, { bos: false, specials: false });
  const words = countWords(text);
  return {
    name,
    n_tokens: ids.length,
    tokens_per_word: words ? ids.length / words : null,
    tokens: ids.map((id) => piece(tokenizer, id)),
  };
}
