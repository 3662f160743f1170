// Parts of a prompt that can be changed: its tokens, words, paragraphs or messages, or a selection. No DOM access.

/**
 * A part of the prompt: tokens `from` to `to` (exclusive) of the sequence, and its text. `head`: attention to it
 * is masked in this head alone.
 *
 * @typedef {{from: number, to: number, text: string, head?: number}} Unit
 */
/** @typedef {"tokens" | "words" | "paragraphs" | "messages"} Division */
/** @typedef {Division | "selection"} UnitKind */
/**
 * A token of the prompt. `bytes`: hexadecimal, if they are known; `message`: number of its message; null: it is
 * of the chat template.
 *
 * @typedef {{text: string, bytes?: string, special: boolean, message: number | null}} PromptPart
 */

/** In the text of a token that has a part of a character; it counts as a letter. */
const SPLIT = "\uFFFD";
const STARTS_WORD = /^\s|^[^\p{L}\p{N}\uFFFD]/u;
const ENDS_PARAGRAPH = /\n\s*\n\s*$/;
const ENDS_WORD = /\s$|[^\p{L}\p{N}\uFFFD]$/u;
const utf8 = new TextDecoder();

/**
 * Tokens of the prompt with what is known of them. `cut`: the tokenized request, if it has the same
 * ids; without it, special tokens are recognised by their text.
 *
 * @param {ToPage.TokenText[]} prompt
 * @param {ToPage.PromptPiece[] | null} cut
 * @returns {PromptPart[]}
 */
export function partsOf(prompt, cut) {
  const isSame = cut?.length === prompt.length && prompt.every(({ id }, i) => id === cut[i].id);
  if (!cut || !isSame)
    return prompt.map(({ text }) => ({ text, special: text === "" || /^<\|.*\|>$/.test(text), message: 0 }));
  const isChat = cut.some(({ role }) => role);
  return cut.map(({ text, bytes, special, message }) => ({ text, bytes, special, message: isChat ? message : 0 }));
}

/**
 * Return the units of a prompt. Tokens of the chat template stay where they are.
 *
 * @param {PromptPart[]} parts
 * @param {Division} kind
 * @returns {Unit[]}
 */
export function unitsOf(parts, kind) {
  /** @type {Unit[]} */
  const units = [];
  parts.forEach((part, i) => {
    const { text, special, message } = part;
    if (special || message === null) return;
    const last = units.at(-1);
    if (last?.to === i && belongs(last, parts[i - 1], part, kind)) {
      last.to += 1;
      last.text += text;
    } else units.push({ from: i, to: i + 1, text });
  });
  return units
    .filter(({ text }) => text.trim() !== "")
    .map((unit) => ({ ...unit, text: textOf(parts.slice(unit.from, unit.to)) }));
}

/** The text of tokens, with the characters that are split over them. @param {PromptPart[]} parts */
function textOf(parts) {
  const text = parts.map((part) => part.text).join("");
  if (!text.includes(SPLIT) || parts.some(({ bytes }) => !bytes)) return text;
  const all = parts.flatMap(({ bytes }) => bytes?.match(/../g) ?? []);
  return utf8.decode(Uint8Array.from(all, (byte) => parseInt(byte, 16)));
}

/**
 * Return the selected tokens as a unit, which may have tokens of the chat template.
 *
 * @param {PromptPart[]} parts
 * @param {import("./selection.js").Span} span
 * @returns {Unit}
 */
export const selectedUnit = (parts, { from, to }) => ({ from, to, text: textOf(parts.slice(from, to)) });

/** Return a unit for all heads, then for each head. @param {Unit} unit @param {number} nHeads @returns {Unit[]} */
export const byHead = (unit, nHeads) => [unit, ...Array.from({ length: nHeads }, (_, head) => ({ ...unit, head }))];

/**
 * Does a token go on with a unit, whose last token is `before`?
 *
 * @param {Unit} unit
 * @param {PromptPart} before
 * @param {PromptPart} part
 * @param {Division} kind
 */
function belongs(unit, before, part, kind) {
  if (kind === "tokens" || before.message !== part.message) return false;
  if (kind === "messages") return true;
  if (kind === "paragraphs") return !ENDS_PARAGRAPH.test(unit.text);
  return !STARTS_WORD.test(part.text) && !ENDS_WORD.test(before.text);
}
