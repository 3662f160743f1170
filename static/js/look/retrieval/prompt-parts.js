// Where the chunks stand in the tokens of a prompt, and which of these came from the KV cache. No DOM access.

import { searchable, textOfTokens } from "../../turns/prompt-text.js";

/**
 * Tokens `from` to `to` (exclusive) of the prompt, which have the text `text`.
 *
 * @typedef {{name: string, text: string, from: number, to: number}} PromptChunk
 */

/**
 * Find the chunks in the prompt. Those whose text is not there as it was sent are left out. `files`: names
 * of the chunks and their parts of the message, in their order.
 *
 * @param {ToPage.TokenText[]} prompt
 * @param {{name: string, block: string}[]} files
 * @returns {PromptChunk[]}
 */
export function chunksIn(prompt, files) {
  const { text: whole, firstOf, lastOf } = textOfTokens(prompt);
  let after = whole.length; // the newest message is the last: look for its chunks from the end
  /** @type {PromptChunk[]} */
  const found = [];
  for (let i = files.length - 1; i >= 0; i -= 1) {
    const text = files[i].block.trimEnd();
    const wanted = searchable(text);
    const start = whole.lastIndexOf(wanted, after - 1);
    if (start < 0) continue;
    after = start;
    found.unshift({ name: files[i].name, text, from: firstOf(start), to: lastOf(start + wanted.length - 1) + 1 });
  }
  return found;
}

/** Most characters that are shown of a chunk. */
const EXCERPT = 120;

/** The first words of a chunk, without its name and fence. @param {string} text */
export function excerpt(text) {
  const words = text.split("\n").slice(2).join(" ").replace(/ ?`+$/, "");
  return words.length > EXCERPT ? `${words.slice(0, EXCERPT).replace(/\s+\S*$/, "")} …` : words;
}

/**
 * Count the tokens of a chunk that were reused from the beginning of an earlier prompt, moved here from
 * another place, and read now.
 *
 * @param {{from: number, to: number}} chunk
 * @param {{promptReused: number, promptMoved: ToPage.MovedChunk[]}} segment
 */
export function cachedOf({ from, to }, { promptReused, promptMoved }) {
  const shared = (/** @type {number} */ first, /** @type {number} */ end) => Math.max(0, Math.min(to, end) - Math.max(from, first));
  const reused = shared(0, promptReused);
  const moved = promptMoved.reduce((sum, { first, end }) => sum + shared(first, end), 0);
  return { reused, moved, read: to - from - reused - moved };
}

/**
 * Share of the attention of all answer tokens that each range of tokens got. `received`: what each token
 * got from `n` of them together, mean over layers and heads.
 *
 * @param {Float32Array | Uint32Array} received
 * @param {number} n
 * @param {{from: number, to: number}[]} ranges
 */
export const attentionOf = (received, n, ranges) =>
  ranges.map(({ from, to }) => [...received.slice(from, to)].reduce((sum, each) => sum + each, 0) / n);
