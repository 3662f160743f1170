// Tokenizer of the model in this browser: the ids and texts of the server's
// (gpu/text/tokenizer.py).
//
// The library `@huggingface/tokenizers` normalizes, splits and merges; added tokens and decoding
// are done here.

import { Tokenizer } from "../../../vendor/tokenizers/tokenizers.min.js";
import { InvalidRequest } from "../shared/errors.js";
import { AddedTokens } from "./added-tokens.js";
import { DecodeStream } from "./decode-stream.js";
import { Segmenter } from "./segmentation.js";
import { readSpecialTokens, ROLES } from "./special-tokens.js";
import { TokenBytes } from "./token-bytes.js";
import { decodeUtf8 } from "./utf8-decoder.js";

/** Longest text whose segmentation is shown (gpu/text/tokenizer.py). */
const MAX_SEGMENTED_CHARS = 100;
const NO_BYTES = new Uint8Array();
const utf8 = new TextEncoder();

export class LocalTokenizer {
  /**
   * Return the tokenizer of an export. `files`: parsed files of the model by name, of which
   * tokenizer.json must be there; `chat`: `chat` of the manifest. Throws for a tokenizer that
   * cannot be used.
   *
   * @param {TokenizerFiles} files
   * @param {ModelChat} chat
   */
  static from(files, chat) {
    const tokenizer = files["tokenizer.json"];
    if (!tokenizer) throw new Error("the model has no tokenizer.json; export it again");
    return new LocalTokenizer(tokenizer, files, chat);
  }

  /** @param {TokenizerFile} file @param {TokenizerFiles} files @param {ModelChat} chat */
  constructor(file, files, chat) {
    this.bosToken = chat.bos_token;
    this.eosToken = chat.eos_token;
    this.specialTokens = chat.special_tokens ?? {};
    this.chatTemplate = chat.chat_template;
    this.eosIds = [...chat.eos_ids];
    const eos = this.eosToken ?? undefined;
    this.library = new Tokenizer({ ...file, added_tokens: [] }, { eos_token: eos });
    this.wordStart = wordStart(file.pre_tokenizer);
    this.segmenter = new Segmenter(file.model);
    this.unknown = file.model.unk_token ?? null;
    this.byteFallback = Array.isArray(file.model.vocab) && file.model.byte_fallback === true;
    this.added = new AddedTokens(file.added_tokens ?? [], (text) => this.normalized(text));
    const special = readSpecialTokens(files);
    this.added.add(this.numbered(files, special));
    const ends = this.endsOf([this.bosToken, this.eosToken]);
    for (const token of [...Object.values(special.named), ...special.others]) this.addNamed(token);
    this.added.add(ends);
    this.vocabSize = this.nextId();
    this.prefix = this.findPrefix();
    this.rules = TokenBytes.fromDecoder(file.decoder);
    /** Bytes that were looked up, by id. @type {Map<number, Uint8Array>} */
    this.bytes = new Map();
  }

  /** Number of spaces removed from the beginning of a decoded text (SentencePiece adds one). */
  get nStrippedSpaces() {
    return this.rules.strip;
  }

  /**
   * Return the token ids of a text.
   *
   *   bos       begin with the tokens that this tokenizer begins a text with
   *   specials  text such as "<|im_end|>" becomes that special token; false keeps it plain text
   *   inside    the text follows another one
   *
   * Throws InvalidRequest for a text that cannot be encoded.
   *
   * @param {string} text
   * @param {EncodeOptions} [options]
   * @returns {number[]}
   */
  encode(text, { bos = true, specials = true, inside = false } = {}) {
    expectUnicode(text);
    const { model } = this.library;
    /** @type {number[]} */
    const ids = [];
    for (const piece of this.added.split(text, specials)) {
      if (piece.token) ids.push(piece.token.id);
      else
        for (const token of model(this.wordsOf(piece.text, piece.first && !inside)))
          ids.push(...this.idsOf(token));
    }
    if (!specials) this.checkPlain(ids);
    return bos && !this.prefix.every((id, i) => ids[i] === id) ? [...this.prefix, ...ids] : ids;
  }

  /**
   * Return how the words of a plain text become the ids of `encode`, step by step. Throws
   * InvalidRequest for a text that is too long, or has an added token.
   *
   * @param {string} text
   * @returns {Pick<ToPage.Segmented, "algorithm" | "words">}
   */
  segment(text) {
    const nChars = Array.from(text).length;
    if (nChars > MAX_SEGMENTED_CHARS)
      throw new InvalidRequest(
        `expected at most ${MAX_SEGMENTED_CHARS} characters, but got ${nChars}`,
        "text",
      );
    const ids = this.encode(text, { bos: false, specials: false });
    const words = this.steps(text);
    if (String(words.flatMap((word) => word.ids)) !== String(ids))
      throw new InvalidRequest(
        "this text has a token that was added to the vocabulary, which no merge makes; use another " +
          "text",
        "text",
      );
    return { algorithm: this.segmenter.algorithm, words };
  }

  /** Return the steps of all words of a text; added tokens have none. @param {string} text */
  steps(text) {
    const pieces = this.added.split(text, false);
    return pieces.flatMap(({ text: part, first, token }) =>
      token ? [] : this.wordsOf(part, first).map((word) => this.segmenter.steps(word)),
    );
  }

  /**
   * Return [size of the vocabulary, tokens of the texts] of this BPE with fewer and fewer merges, from none
   * to all of them. A merge needs only merges of lower rank, so those of a word that are left are the
   * steps that its shorter list would make.
   *
   * @param {string[]} texts
   * @returns {[vocabSize: number, nTokens: number][]}
   */
  countsByVocabulary(texts) {
    const words = texts.flatMap((text) => this.steps(text));
    const nMerges = this.segmenter.tables.ranks.size;
    const uses = new Uint32Array(nMerges);
    for (const { merges } of words) for (const { rank } of merges) uses[rank] += 1;
    const nSymbols = words.reduce((sum, { symbols }) => sum + symbols.length, 0);
    /** @type {[number, number][]} */
    const counts = [[this.vocabSize - nMerges, nSymbols]];
    uses.forEach((n, rank) => counts.push([this.vocabSize - nMerges + rank + 1, counts[rank][1] - n]));
    return counts;
  }

  /** Return the words of a normalized text. @param {string} text @param {boolean} isFirst */
  wordsOf(text, isFirst) {
    const { pre_tokenizer: split } = this.library;
    const words = split ? split(text, { section_index: isFirst ? 0 : 1 }) : [text];
    const { wordStart: start } = this;
    return start === null ? words : words.flatMap((word) => word.split(start));
  }

  /** Return the text of a whole sequence, without special tokens. @param {number[]} ids */
  decode(ids) {
    const stream = new DecodeStream(this);
    return ids.map((id) => stream.push(id)).join("") + stream.flush();
  }

  /** Return the decoder of a text that follows `promptIds`. @param {number[]} [promptIds] */
  decodeStream(promptIds = []) {
    return new DecodeStream(this, promptIds);
  }

  /**
   * Return the text of one token for display: special tokens literally, U+FFFD for part of a
   * character, "<unused 512>" for an id that the tokenizer does not have.
   *
   * @param {number} id
   */
  piece(id) {
    const token = this.tokenOf(id);
    if (token === null) return `<unused ${id}>`;
    if (this.isSpecial(id)) return token;
    return decodeUtf8(this.tokenBytes(id));
  }

  /**
   * Return the UTF-8 bytes that a token adds to a text; none for special and unknown ids.
   *
   * @param {number} id
   */
  tokenBytes(id) {
    let found = this.bytes.get(id);
    if (!found) {
      const token = this.tokenOf(id);
      if (token === null || this.isSpecial(id)) found = NO_BYTES;
      else if (this.added.byId.has(id) && this.rules.byteLevel) found = utf8.encode(token);
      else found = this.rules.of(token);
      this.bytes.set(id, found);
    }
    return found;
  }

  /** Is the token a control token, which is never part of the text? @param {number} id */
  isSpecial(id) {
    return this.added.byId.get(id)?.special ?? false;
  }

  /** @param {number} id */
  tokenOf(id) {
    return this.added.byId.get(id)?.content ?? this.library.model.vocab[id] ?? null;
  }

  /** @param {string} token */
  idOf(token) {
    return this.added.ids.get(token) ?? this.library.model.tokens_to_ids.get(token);
  }

  /** @param {string} text */
  normalized(text) {
    return this.library.normalizer ? this.library.normalizer(text) : text;
  }

  /**
   * Return the ids of a token of the library's model, which has no byte fallback of Unigram.
   *
   * @param {string} token
   */
  idsOf(token) {
    const { model } = this.library;
    const id = model.tokens_to_ids.get(token);
    if (id !== undefined) return [id];
    const bytes = this.byteFallback ? Array.from(utf8.encode(token), byteToken) : [];
    const ids = bytes.flatMap((byte) => model.tokens_to_ids.get(byte) ?? []);
    return ids.length && ids.length === bytes.length ? ids : [model.unk_token_id];
  }

  /** The id of a token that is added. */
  nextId() {
    return Math.max(
      this.library.model.vocab.length,
      ...[...this.added.byId.keys()].map((id) => id + 1),
    );
  }

  /**
   * Return the tokens of tokenizer_config.json, or of the older added_tokens.json.
   *
   * @param {TokenizerFiles} files
   * @param {ReturnType<typeof readSpecialTokens>} special
   */
  numbered(files, { named, others }) {
    const { added_tokens_decoder: entries } = files["tokenizer_config.json"] ?? {};
    /** @type {AddedToken[]} */
    const tokens = [];
    for (const [id, token] of Object.entries(entries ?? {}))
      tokens.push({ normalized: !token.special, ...token, id: Number(id) });
    if (!entries) {
      const names = new Set(others.map(({ content }) => content));
      for (const role of ROLES) names.add(named[role]?.content);
      for (const [content, id] of Object.entries(files["added_tokens.json"] ?? {})) {
        const special = names.has(content);
        if (!this.added.byId.has(id)) tokens.push({ content, id, special, normalized: !special });
      }
    }
    for (const { content, id } of tokens)
      if ((this.idOf(content) ?? id) !== id)
        throw new Error(
          `expected the id ${id} for the added token ${content}, but the tokenizer gives it ` +
            `${this.idOf(content)}; download the tokenizer's files again`,
        );
    return tokens.sort((a, b) => a.id - b.id);
  }

  /** Add a token that is only named, unless one of its text was added before. @param {NamedToken} token */
  addNamed(token) {
    if (this.added.ids.has(token.content)) return;
    this.added.put({ ...token, id: this.idOf(token.content) ?? this.nextId() });
  }

  /**
   * Return the beginning and the end of a sequence as special tokens; some files do not mark them.
   *
   * @param {(string | null)[]} tokens
   */
  endsOf(tokens) {
    return tokens
      .filter((token) => token != null)
      .map((content) => {
        const id = this.idOf(content);
        if (id === undefined)
          throw new Error(
            `tokenizer.json: expected a token ${content}, as the config names it, but there is none`,
          );
        return { normalized: false, ...this.added.byId.get(id), id, content, special: true };
      });
  }

  /** Return the ids that every text begins with, by the post-processor. */
  findPrefix() {
    const { post_processor: process } = this.library;
    if (!process) return [];
    const mark = "a"; // stands for a text
    const { tokens } = process([mark], null, true);
    return tokens.slice(0, tokens.indexOf(mark)).flatMap((token) => this.idOf(token) ?? []);
  }

  /**
   * Throw InvalidRequest for special tokens in plain text: a vocabulary may have them as words.
   *
   * @param {number[]} ids
   */
  checkPlain(ids) {
    for (const id of ids) {
      const token = this.isSpecial(id) ? this.tokenOf(id) : null;
      if (token !== null && token !== this.unknown && token !== "<unk>")
        throw new InvalidRequest(
          `the text contains '${token}', which this model's tokenizer cannot distinguish from its ` +
            "control token; write it differently",
        );
    }
  }
}

/**
 * Return what each word of Metaspace begins with, where the library leaves the words of a text
 * together; null if there is nothing more to split.
 *
 * @param {PreTokenizer | null | undefined} rule
 * @returns {RegExp | null}
 */
function wordStart(rule) {
  if (rule?.type === "Sequence") return rule.pretokenizers?.map(wordStart).find((one) => one) ?? null;
  if (rule?.type !== "Metaspace" || rule.split === false) return null;
  return new RegExp(`(?=${rule.replacement ?? "▁"})`, "u");
}

/** @param {number} byte */
const byteToken = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/** Throw InvalidRequest for half of a surrogate pair. @param {string} text */
function expectUnicode(text) {
  if (text.isWellFormed()) return;
  const chars = Array.from(text);
  const at = chars.findIndex((char) => !char.isWellFormed());
  const code = chars[at].charCodeAt(0).toString(16);
  throw new InvalidRequest(
    `the text must be Unicode, but has '\\u${code}' at ${at}, which is half of a surrogate pair`,
  );
}
