// Small tokenizers, one of each family: all were trained on the same texts, with vocabularies of the
// same size (tests/tokenizers/train.py). They run in the page.

/** @typedef {import("../../local/text/tokenizer.js").LocalTokenizer} LocalTokenizer */
/** @typedef {{name: string, title: string, like: string}} Family */

/** Tokens of each of them. */
export const VOCAB_SIZE = 2000;

/** @type {Family[]} */
export const FAMILIES = [
  { name: "byte-level-bpe", title: "Byte-level BPE", like: "as in GPT-2, Llama 3 and Qwen" },
  { name: "sentencepiece-bpe", title: "SentencePiece BPE", like: "as in Llama 2 and Mistral" },
  { name: "unigram", title: "Unigram", like: "as in T5 and XLM-R" },
  { name: "wordpiece", title: "WordPiece", like: "as in BERT" },
];

/** @type {Map<string, Promise<LocalTokenizer>>} */
const loaded = new Map();

/** Return the tokenizer of a family; its file is fetched once. @param {string} name */
export function loadFamily(name) {
  let found = loaded.get(name);
  if (!found) {
    found = fetchFamily(name);
    found.catch(() => loaded.delete(name));
    loaded.set(name, found);
  }
  return found;
}

/** @param {string} name @returns {Promise<LocalTokenizer>} */
async function fetchFamily(name) {
  const { LocalTokenizer } = await import("../../local/text/tokenizer.js");
  const response = await fetch(new URL(`../../../tokenizers/${name}.json`, import.meta.url));
  if (!response.ok)
    throw { code: "lost", message: `The tokenizer ${name} cannot be fetched (HTTP ${response.status}).` };
  const chat = { bos_token: null, eos_token: null, chat_template: null, eos_ids: [] };
  return LocalTokenizer.from({ "tokenizer.json": await response.json() }, chat);
}

/**
 * Return the steps of a short text in a family's tokenizer, as the model's tokenizer answers `segment`.
 *
 * @param {string} name
 * @param {string} text
 * @returns {Promise<ToPage.Segmented>}
 */
export async function segmentBy(name, text) {
  const [{ segmented }, tokenizer] = await Promise.all([
    import("../../local/text/tokenizing.js"),
    loadFamily(name),
  ]);
  return segmented(tokenizer, { type: "segment", request: 0, text });
}
