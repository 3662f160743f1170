// Tokenizer of the model in this browser: the ids and texts of the server's
// (gpu/text/tokenizer.py).
//
// The library `@huggingface/tokenizers` normalizes, splits and merges; added tokens and decoding
// are done here.

import { Tokenizer } from "../../../vendor/tokenizers/tokenizers.min.js";
import { InvalidRequest } from "../errors.js";
import { AddedTokens } from "./added-tokens.js";
import { DecodeStream } from "./decode-stream.js";
import { TokenBytes } from "./token-bytes.js";
import { decodeUtf8 } from "./utf8-decoder.js";

const NAMED = ["bos", "eos", "unk", "pad", "sep", "cls", "mask"].map((kind) => `${kind}_token`);
const MANY = ["additional_special_tokens", "extra_special_tokens"];
const NO_BYTES = new Uint8Array();
const utf8 = new TextEncoder();

export class LocalTokenizer {
  /**
   * Return the tokenizer of an export. `files`: parsed files of the model by name, of which
   * tokenizer.json must be there; `chat`: `chat` of the manifest. Throws for a tokenizer that
   * cannot be used.
   */
  static from(files, chat) {
    const tokenizer = files["tokenizer.json"];
    if (!tokenizer) throw new Error("the model has no tokenizer.json; export it again");
    return new LocalTokenizer(tokenizer, files["tokenizer_config.json"] ?? {}, files, chat);
  }

  constructor(file, config, files, chat) {
    this.bosToken = chat.bos_token;
    this.eosToken = chat.eos_token;
    this.chatTemplate = chat.chat_template;
    this.eosIds = [...chat.eos_ids];
    const eos = this.eosToken ?? undefined;
    this.library = new Tokenizer({ ...file, added_tokens: [] }, { eos_token: eos });
    this.unknown = file.model.unk_token ?? null;
    this.added = new AddedTokens(file.added_tokens ?? [], (text) => this.normalized(text));
    this.added.add(this.lacking(config, files));
    this.added.add(this.named([this.bosToken, this.eosToken]));
    this.vocabSize = Math.max(
      this.library.model.vocab.length,
      ...[...this.added.byId.keys()].map((id) => id + 1),
    );
    this.prefix = this.findPrefix(config);
    this.rules = TokenBytes.fromDecoder(file.decoder);
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
   */
  encode(text, { bos = true, specials = true, inside = false } = {}) {
    expectUnicode(text);
    const { model, pre_tokenizer: split } = this.library;
    const ids = [];
    for (const piece of this.added.split(text, specials)) {
      if (piece.token) ids.push(piece.token.id);
      else {
        const at = { section_index: piece.first && !inside ? 0 : 1 };
        const words = split ? split(piece.text, at) : [piece.text];
        for (const token of model(words))
          ids.push(model.tokens_to_ids.get(token) ?? model.unk_token_id);
      }
    }
    if (!specials) this.checkPlain(ids);
    return bos && !this.prefix.every((id, i) => ids[i] === id) ? [...this.prefix, ...ids] : ids;
  }

  /** Return the text of a whole sequence, without special tokens. */
  decode(ids) {
    const stream = new DecodeStream(this);
    return ids.map((id) => stream.push(id)).join("") + stream.flush();
  }

  /** Return the decoder of a text that follows `promptIds`. */
  decodeStream(promptIds = []) {
    return new DecodeStream(this, promptIds);
  }

  /**
   * Return the text of one token for display: special tokens literally, U+FFFD for part of a
   * character, "<unused 512>" for an id that the tokenizer does not have.
   */
  piece(id) {
    const token = this.tokenOf(id);
    if (token === null) return `<unused ${id}>`;
    if (this.isSpecial(id)) return token;
    return decodeUtf8(this.tokenBytes(id));
  }

  /** Return the UTF-8 bytes that a token adds to a text; none for special and unknown ids. */
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

  /** Is the token a control token, which is never part of the text? */
  isSpecial(id) {
    return this.added.byId.get(id)?.special ?? false;
  }

  tokenOf(id) {
    return this.added.byId.get(id)?.content ?? this.library.model.vocab[id] ?? null;
  }

  idOf(token) {
    return this.added.ids.get(token) ?? this.library.model.tokens_to_ids.get(token);
  }

  normalized(text) {
    return this.library.normalizer ? this.library.normalizer(text) : text;
  }

  /**
   * Return the tokens that tokenizer_config.json or added_tokens.json has and tokenizer.json lacks.
   */
  lacking(config, files) {
    const entries = Object.entries(config.added_tokens_decoder ?? {});
    const numbered = entries.map(([id, token]) => ({ ...token, id: Number(id) }));
    if (!numbered.length)
      for (const [content, id] of Object.entries(files["added_tokens.json"] ?? {}))
        numbered.push({ content, id, normalized: false });
    const special = new Set([config, files["special_tokens_map.json"] ?? {}].flatMap(specialNames));
    return numbered
      .filter(({ content }) => this.idOf(content) === undefined)
      .map((token) => ({ ...token, special: token.special || special.has(token.content) }));
  }

  /**
   * Return the beginning and the end of a sequence as special tokens; some files do not mark them.
   */
  named(tokens) {
    return tokens
      .filter((token) => token != null)
      .map((content) => {
        const id = this.idOf(content);
        if (id === undefined)
          throw new Error(
            `tokenizer.json: expected a token ${content}, as the config names it, but there is none`,
          );
        return { id, content, special: true, normalized: false };
      });
  }

  /** Return the ids that every text begins with, by `add_bos_token` or by the post-processor. */
  findPrefix(config) {
    if (config.add_bos_token != null)
      return config.add_bos_token && this.bosToken != null ? [this.idOf(this.bosToken)] : [];
    const { post_processor: process } = this.library;
    if (!process) return [];
    const mark = "a"; // stands for a text
    const { tokens } = process([mark], null, true);
    return tokens.slice(0, tokens.indexOf(mark)).map((token) => this.idOf(token));
  }

  /** Throw InvalidRequest for special tokens in plain text: a vocabulary may have them as words. */
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

/** Return the special tokens that a config or special_tokens_map.json names. */
function specialNames(file) {
  const many = MANY.flatMap((name) => Object.values(file[name] ?? {}));
  return [...NAMED.map((name) => file[name]), ...many]
    .map((value) => value?.content ?? value)
    .filter((value) => typeof value === "string");
}

/** Throw InvalidRequest for half of a surrogate pair. */
function expectUnicode(text) {
  if (text.isWellFormed()) return;
  const chars = Array.from(text);
  const at = chars.findIndex((char) => !char.isWellFormed());
  const code = chars[at].charCodeAt(0).toString(16);
  throw new InvalidRequest(
    `the text must be Unicode, but has '\\u${code}' at ${at}, which is half of a surrogate pair`,
  );
}
