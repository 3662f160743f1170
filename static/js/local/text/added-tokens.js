// Added tokens of a tokenizer: texts such as "<|im_end|>" that are one token wherever they stand.
//
// They are split off before the library sees a text, because it knows neither plain text (where
// names of special tokens are no tokens) nor words that an added token must not be part of. The
// rules are those of the Rust library `tokenizers`.

const SPACES_BEFORE = /\p{White_Space}*$/u;
const SPACES_AFTER = /^\p{White_Space}*/u;
const WORD_BEFORE = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]$/u;
const WORD_AFTER = /^[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]/u;

/**
 * A piece of a text at `at`, with `token` null for what is no added token.
 *
 * @typedef {{text: string, token: AddedToken | null, at: number}} Piece
 * @typedef {{start: number, end: number, token: AddedToken}} Match
 */

export class AddedTokens {
  /** Those found in a text as it is, and those in a normalized one. */
  plain = new Trie([]);
  normalized = new Trie([]);
  /** By id. @type {Map<number, AddedToken>} */
  byId = new Map();
  /** By text. @type {Map<string, number>} */
  ids = new Map();
  /** Texts that plain text does not match. @type {Set<string>} */
  specials = new Set();

  /** @param {AddedToken[]} tokens @param {(text: string) => string} normalize */
  constructor(tokens, normalize) {
    this.normalize = normalize;
    for (const token of tokens) this.put(token);
    this.refresh();
  }

  /**
   * Add tokens. One that is there gets the new flags, and stays special if it was.
   *
   * @param {AddedToken[]} tokens
   */
  add(tokens) {
    for (const token of tokens) this.put(token);
    this.refresh();
  }

  /** @param {AddedToken} token */
  put(token) {
    if (!token.content) return;
    if (token.special) this.specials.add(token.content);
    this.ids.set(token.content, token.id);
    this.byId.set(token.id, { ...token, special: this.specials.has(token.content) });
  }

  refresh() {
    const tokens = [...this.byId.values()].filter(({ content }) => content);
    this.plain = new Trie(tokens.filter((t) => !t.normalized).map((t) => [t.content, t]));
    const normalized = tokens.filter((token) => token.normalized);
    this.normalized = new Trie(normalized.map((t) => [this.normalize(t.content), t]));
  }

  /**
   * Split a text into {text, token}, with `token` null for what is no added token; there `text` is
   * normalized. `first`: nothing of the text comes before this piece. `specials`: names of special
   * tokens are tokens.
   *
   * @param {string} text
   * @param {boolean} specials
   */
  split(text, specials) {
    /** @type {(Piece & {first: boolean})[]} */
    const pieces = [];
    for (const outer of this.cut(text, this.plain, specials)) {
      if (outer.token) pieces.push({ ...outer, first: false });
      else
        for (const inner of this.cut(this.normalize(outer.text), this.normalized, specials))
          pieces.push({ ...inner, first: outer.at === 0 && inner.at === 0 });
    }
    return pieces;
  }

  /** @param {string} text @param {Trie} trie @param {boolean} specials */
  cut(text, trie, specials) {
    /** @type {Piece[]} */
    const pieces = [];
    let from = 0;
    for (let { start, end, token } of trie.matches(text)) {
      if (!specials && this.specials.has(token.content)) continue;
      if (
        token.single_word &&
        (WORD_BEFORE.test(text.slice(0, start)) || WORD_AFTER.test(text.slice(end)))
      )
        continue;
      if (token.lstrip) start = Math.max(from, text.slice(0, start).search(SPACES_BEFORE));
      if (token.rstrip) end += SPACES_AFTER.exec(text.slice(end))?.[0].length ?? 0;
      if (from < start) pieces.push({ text: text.slice(from, start), token: null, at: from });
      pieces.push({ text: text.slice(start, end), token, at: start });
      from = end;
    }
    if (from < text.length) pieces.push({ text: text.slice(from), token: null, at: from });
    return pieces;
  }
}

class TrieNode {
  /** @type {Map<string, TrieNode>} */
  next = new Map();
  /** The token whose text ends here. @type {AddedToken | null} */
  token = null;
}

/**
 * Texts to find: of those that begin at a place the longest, from left to right, none overlapping.
 */
class Trie {
  /** @param {[string, AddedToken][]} entries */
  constructor(entries) {
    this.root = new TrieNode();
    for (const [text, token] of entries) {
      let node = this.root;
      for (const unit of text) {
        const next = node.next.get(unit) ?? new TrieNode();
        node.next.set(unit, next);
        node = next;
      }
      node.token ??= token;
    }
  }

  /** @param {string} text */
  *matches(text) {
    if (!this.root.next.size) return;
    for (let start = 0; start < text.length;) {
      const match = this.longestAt(text, start);
      if (match) yield match;
      start = match ? match.end : start + 1;
    }
  }

  /** @param {string} text @param {number} start */
  longestAt(text, start) {
    let node = this.root;
    /** @type {Match | null} */
    let found = null;
    for (let end = start; end < text.length;) {
      const unit = String.fromCodePoint(text.codePointAt(end) ?? 0);
      const next = node.next.get(unit);
      if (!next) break;
      node = next;
      end += unit.length;
      if (node.token) found = { start, end, token: node.token };
    }
    return found;
  }
}
