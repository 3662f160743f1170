// Search over texts: their passages ranked by BM25 (Robertson and Zaragoza, "The Probabilistic
// Relevance Framework: BM25 and Beyond", 2009) with its usual constants.

const K1 = 1.2;
const B = 0.75;
const MAX_PASSAGE = 600;
const WORD = /[\p{L}\p{N}]+/gu;

/** @typedef {{name: string, text: string}} SearchedText */

/** @param {string} text @returns {string[]} */
const wordsOf = (text) => text.toLowerCase().match(WORD) ?? [];

/**
 * Return the paragraphs of a text, long ones in several parts.
 *
 * @param {string} text
 */
export function passagesOf(text) {
  return text.split(/\n\s*\n/).flatMap((paragraph) => {
    const parts = [];
    let part = "";
    for (const word of paragraph.trim().split(/\s+/)) {
      if (part && part.length + word.length >= MAX_PASSAGE) {
        parts.push(part);
        part = "";
      }
      part += (part ? " " : "") + word;
    }
    return part ? [...parts, part] : parts;
  });
}

/**
 * Return the `most` passages that answer a query best, best first: {name, passage, score}. A passage
 * without any word of the query is none.
 *
 * @param {SearchedText[]} texts
 * @param {string} query
 * @param {number} most
 */
export function search(texts, query, most) {
  const passages = texts.flatMap(({ name, text }) =>
    passagesOf(text).map((passage) => ({ name, passage, words: wordsOf(passage) })),
  );
  const meanLength = passages.reduce((sum, { words }) => sum + words.length, 0) / (passages.length || 1);
  const terms = [...new Set(wordsOf(query))];
  const weights = new Map(
    terms.map((term) => {
      const n = passages.filter(({ words }) => words.includes(term)).length;
      return [term, Math.log(1 + (passages.length - n + 0.5) / (n + 0.5))];
    }),
  );
  return passages
    .map(({ name, passage, words }) => {
      const norm = K1 * (1 - B + (B * words.length) / (meanLength || 1));
      let score = 0;
      for (const [term, weight] of weights) {
        const n = words.filter((word) => word === term).length;
        score += (weight * n * (K1 + 1)) / (n + norm);
      }
      return { name, passage, score };
    })
    .filter(({ score }) => score > 0)
    .sort((a, b) => b.score - a.score)
    .slice(0, most);
}
