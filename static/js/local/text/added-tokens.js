// @ts-nocheck
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
 * An added token as tokenizer.json has it: {id, content, special, normalized, lstrip, rstrip,
 * single_word}.
 */
export class AddedTokens {
  constructor(tokens, normalize) {
    this.normalize = normalize;
    /** id → token */
    this.byId = new Map();
    /** text → id */
    this.ids = new Map();
    /** Texts that plain text does not match. */
    this.specials = new Set();
    for (const token of tokens) this.put(token);
    this.refresh();
  }

  /** Add tokens. One that is there gets the new flags, and stays special if it was. */
  add(tokens) {
    for (const token of tokens) this.put(token);
    this.refresh();
  }

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
   */
  split(text, specials) {
    const pieces = [];
    for (const outer of this.cut(text, this.plain, specials)) {
      if (outer.token) pieces.push({ ...outer, first: false });
      else
        for (const inner of this.cut(this.normalize(outer.text), this.normalized, specials))
          pieces.push({ ...inner, first: outer.at === 0 && inner.at === 0 });
    }
    return pieces;
  }

  cut(text, trie, specials) {
    const pieces = [];
    let from = 0;
    for (let { start, end, token } of trie.matches(text)) {
      if (!specials && this.specials.has(token.content)) continue;
      if (
        token.single_word &&
        (WORD_BEFORE.test(text.slice(0, start)) || WORD_AFTER.test(text.slice(end)))
      )
        continue;
      if (token.lstrip) start = Math.max(from, SPACES_BEFORE.exec(text.slice(0, start)).index);
      if (token.rstrip) end += SPACES_AFTER.exec(text.slice(end))[0].length;
      if (from < start) pieces.push({ text: text.slice(from, start), token: null, at: from });
      pieces.push({ text: text.slice(start, end), token, at: start });
      from = end;
    }
    if (from < text.length) pieces.push({ text: text.slice(from), token: null, at: from });
    return pieces;
  }
}

/**
 * Texts to find: of those that begin at a place the longest, from left to right, none overlapping.
 */
class Trie {
  constructor(entries) {
    this.root = new Map();
    for (const [text, token] of entries) {
      let node = this.root;
      for (const unit of text) {
        if (!node.has(unit)) node.set(unit, new Map());
        node = node.get(unit);
      }
      node.token ??= token;
    }
  }

  *matches(text) {
    if (!this.root.size) return;
    for (let start = 0; start < text.length;) {
      const match = this.longestAt(text, start);
      if (match) yield match;
      start = match ? match.end : start + 1;
    }
  }

  longestAt(text, start) {
    let node = this.root;
    let found = null;
    for (let end = start; end < text.length;) {
      const unit = String.fromCodePoint(text.codePointAt(end));
      node = node.get(unit);
      if (!node) break;
      end += unit.length;
      if (node.token) found = { start, end, token: node.token };
    }
    return found;
  }
}
