// Subword segmentation of single words, step by step (gpu/text/segmentation.py, which says what the
// results mean).

/** @typedef {ToPage.WordSteps} WordSteps */
/** @typedef {Omit<ToPage.Candidate, "best">} LatticePiece */

/** @see gpu/text/segmentation.py */
const UNKNOWN_PENALTY = 10;
const utf8 = new TextEncoder();

export class Segmenter {
  /** `model`: that of tokenizer.json. @param {SegmentedModel} model */
  constructor(model) {
    this.model = model;
    this.algorithm = model.type ?? (Array.isArray(model.vocab) ? "Unigram" : "BPE");
    this.prefix = model.continuing_subword_prefix ?? "";
    /** @type {ReturnType<typeof tablesOf> | null} */
    this.made = null;
  }

  /** Tables of the vocabulary, which are made when they are first needed. */
  get tables() {
    return (this.made ??= tablesOf(this.model));
  }

  /** Return the segmentation of one word. @param {string} word @returns {WordSteps} */
  steps(word) {
    switch (this.algorithm) {
      case "BPE":
        return this.merge(word);
      case "Unigram":
        return this.bestPath(word);
      case "WordPiece":
        return this.longestMatches(word);
    }
    return { ...EMPTY, word, ids: this.knownOrUnknown(this.tables.vocab.get(word)) };
  }

  /** @param {number | undefined} [id] */
  knownOrUnknown(id = this.tables.unknown ?? undefined) {
    return id === undefined ? [] : [id];
  }

  /** Return the ids of the bytes of a text; none unless all are in the vocabulary. @param {string} text */
  byteIds(text) {
    if (!this.model.byte_fallback) return [];
    const bytes = [...utf8.encode(text)];
    const ids = bytes.flatMap((byte) => this.tables.vocab.get(byteToken(byte)) ?? []);
    return ids.length === bytes.length ? ids : [];
  }

  // ---- algorithms ------------------------------------------------------------------------------

  /** @param {string} word @returns {WordSteps} */
  merge(word) {
    const whole = this.model.ignore_merges ? this.tables.vocab.get(word) : undefined;
    const symbols = whole === undefined ? this.symbols(word) : [whole];
    const ids = [...symbols];
    /** @type {ToPage.Merge[]} */
    const merges = [];
    for (;;) {
      /** @type {ToPage.Merge | null} */
      let first = null;
      for (let at = 0; at + 1 < ids.length; at += 1) {
        const known = this.tables.ranks.get(pairOf(ids[at], ids[at + 1]));
        if (known && (!first || known.rank < first.rank)) first = { rank: known.rank, at, id: known.id };
      }
      if (!first) return { ...EMPTY, word, symbols, merges, ids };
      ids.splice(first.at, 2, first.id);
      merges.push(first);
    }
  }

  /** Return the ids of the characters of a word, of bytes where there is none. @param {string} word */
  symbols(word) {
    const { end_of_word_suffix: suffix, fuse_unk: fuse } = this.model;
    /** @type {number[]} */
    const ids = [];
    let wasUnknown = false;
    const chars = Array.from(word);
    chars.forEach((char, i) => {
      const end = i === chars.length - 1 ? (suffix ?? "") : "";
      const piece = `${i ? this.prefix : ""}${char}${end}`;
      const id = this.tables.vocab.get(piece);
      const found = id === undefined ? this.byteIds(piece) : [id];
      if (!found.length && !(wasUnknown && fuse)) ids.push(...this.knownOrUnknown());
      wasUnknown = !found.length;
      ids.push(...found);
    });
    return ids;
  }

  /** @param {string} word @returns {WordSteps} */
  bestPath(word) {
    const chars = Array.from(word);
    const lattice = this.lattice(chars);
    // Best path to the end of each character: its log-probability and its last piece.
    const best = Array.from({ length: chars.length + 1 }, () => ({ total: -Infinity, last: -1 }));
    best[0].total = 0;
    lattice.forEach(({ first, end, score }, i) => {
      const total = best[first].total + (score ?? 0);
      if (best[end].last < 0 || total > best[end].total) best[end] = { total, last: i };
    });
    /** @type {number[]} */
    const path = [];
    for (let at = chars.length; at > 0; at = lattice[path[0]].first) path.unshift(best[at].last);
    const chosen = new Set(path);
    const candidates = lattice.map((each, i) => ({ ...each, best: chosen.has(i) }));
    const ids = this.idsOfPath(chars, path.map((i) => lattice[i]));
    return { ...EMPTY, word, candidates, ids };
  }

  /** Return every piece of the vocabulary in a word. @param {string[]} chars */
  lattice(chars) {
    /** @type {LatticePiece[]} */
    const lattice = [];
    chars.forEach((_, first) => {
      const nBefore = lattice.length;
      let piece = "";
      for (let end = first + 1; end <= chars.length && piece.length < this.tables.longest; end += 1) {
        piece += chars[end - 1];
        const id = this.tables.vocab.get(piece);
        if (id !== undefined) lattice.push({ first, end, id, score: this.tables.scores[id] });
      }
      if (lattice[nBefore]?.end !== first + 1)
        lattice.push({ first, end: first + 1, id: this.tables.unknown, score: this.tables.lowest - UNKNOWN_PENALTY });
    });
    return lattice;
  }

  /**
   * Return the ids of a path. Adjacent unknown characters are one token, or its bytes.
   *
   * @param {string[]} chars
   * @param {LatticePiece[]} path
   */
  idsOfPath(chars, path) {
    /** @type {number[]} */
    const ids = [];
    /** @type {number | null} */
    let unknownFrom = null;
    /** @param {number} end */
    const closeUnknown = (end) => {
      if (unknownFrom === null) return;
      const text = chars.slice(unknownFrom, end).join("");
      const known = this.tables.vocab.get(text);
      const bytes = known === undefined ? this.byteIds(text) : [];
      ids.push(...(bytes.length ? bytes : this.knownOrUnknown(known)));
      unknownFrom = null;
    };
    for (const { first, id } of path) {
      if (id === this.tables.unknown || id === null) unknownFrom ??= first;
      else {
        closeUnknown(first);
        ids.push(id);
      }
    }
    closeUnknown(chars.length);
    return ids;
  }

  /** @param {string} word @returns {WordSteps} */
  longestMatches(word) {
    const chars = Array.from(word);
    /** @type {ToPage.Candidate[]} */
    const candidates = [];
    /** @type {number[]} */
    const ids = [];
    let isKnown = chars.length <= (this.model.max_input_chars_per_word ?? Infinity);
    let first = 0;
    while (isKnown && first < chars.length) {
      let end = chars.length;
      let id;
      for (; end > first; end -= 1) {
        id = this.tables.vocab.get((first ? this.prefix : "") + chars.slice(first, end).join(""));
        candidates.push({ first, end, id: id ?? null, score: null, best: id !== undefined });
        if (id !== undefined) break;
      }
      if (id === undefined) isKnown = false;
      else ids.push(id);
      first = end;
    }
    if (isKnown) return { ...EMPTY, word, candidates, ids };
    const none = candidates.map((each) => ({ ...each, best: false }));
    return { ...EMPTY, word, candidates: none, ids: this.knownOrUnknown() };
  }
}

/** @type {Omit<WordSteps, "word" | "ids">} */
const EMPTY = { symbols: [], merges: [], candidates: [] };

/** @param {SegmentedModel} model */
function tablesOf(model) {
  const { vocab: given } = model;
  const isUnigram = Array.isArray(given);
  /** @type {[string, number][]} */
  const entries = isUnigram ? given.map(([piece], id) => [piece, id]) : Object.entries(given);
  const vocab = new Map(entries);
  /** Log-probability of each id. */
  const scores = isUnigram ? given.map(([, score]) => score) : [];
  const named = model.unk_token == null ? null : (vocab.get(model.unk_token) ?? null);
  return {
    vocab,
    scores,
    unknown: isUnigram ? (model.unk_id ?? null) : named,
    ranks: ranksOf(model, vocab),
    lowest: scores.reduce((least, score) => Math.min(least, score), Infinity),
    longest: entries.reduce((most, [piece]) => Math.max(most, piece.length), 0),
  };
}

/** @param {number} byte */
const byteToken = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/** Key of a pair of ids, which are below 2²². @param {number} left @param {number} right */
const pairOf = (left, right) => left * 2 ** 22 + right;

/**
 * Return the rank of the merge of each pair of ids, and the id of its result.
 *
 * @param {SegmentedModel} model
 * @param {Map<string, number>} vocab
 */
function ranksOf({ merges = [], continuing_subword_prefix: prefix }, vocab) {
  /** @type {Map<number, {rank: number, id: number}>} */
  const ranks = new Map();
  merges.forEach((merge, rank) => {
    const [left, right] = typeof merge === "string" ? merge.split(" ") : merge; // files of either kind
    const [a, b] = [vocab.get(left), vocab.get(right)];
    const id = vocab.get(left + right.slice(prefix?.length ?? 0));
    if (a !== undefined && b !== undefined && id !== undefined) ranks.set(pairOf(a, b), { rank, id });
  });
  return ranks;
}

/** Return all ids that the steps name, in order and each once. @param {WordSteps[]} words */
export function namedIds(words) {
  const found = words.flatMap(({ symbols, merges, candidates, ids }) => [
    ...symbols,
    ...ids,
    ...merges.map(({ id }) => id),
    ...candidates.flatMap(({ id }) => id ?? []),
  ]);
  return [...new Set(found)].sort((a, b) => a - b);
}
