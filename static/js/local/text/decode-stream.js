// Incremental detokenization of a sequence that is still being written: token ids in, whole
// characters out (gpu/text/decode_stream.py).

import { Utf8Decoder } from "./utf8-decoder.js";

/** Most bytes of an unfinished UTF-8 character. */
const MAX_INCOMPLETE = 3;
const SPACE = 0x20;

/**
 * Text of a growing sequence, token by token.
 *
 * The joined texts (with `flush`) are what the tokens add to the text of the prompt. A token that
 * ends inside a character gives "" and the one that completes it gives the whole character; bytes
 * that can no longer become a character give U+FFFD at once. Special tokens give "".
 */
export class DecodeStream {
  /**
   * @param {{tokenBytes(id: number): Uint8Array, nStrippedSpaces: number}} tokenizer
   * @param {number[]} [promptIds]
   */
  constructor(tokenizer, promptIds = []) {
    this.tokenizer = tokenizer;
    /** @type {Utf8Decoder} */
    this.decoder = new Utf8Decoder();
    this.strip = tokenizer.nStrippedSpaces;
    /** @type {Uint8Array[]} */
    const tail = [];
    let nBytes = 0;
    for (let i = promptIds.length - 1; i >= 0; i -= 1) {
      if (nBytes > Math.max(this.strip, MAX_INCOMPLETE)) break; // earlier tokens have no effect
      const data = tokenizer.tokenBytes(promptIds[i]);
      tail.push(data);
      nBytes += data.length;
    }
    for (const data of tail.reverse()) this.decode(data);
  }

  /** Return the text that token `id` completes. @param {number} id */
  push(id) {
    return this.decode(this.tokenizer.tokenBytes(id));
  }

  /** Return the end of the text: U+FFFD if it ends inside a character, else "". */
  flush() {
    return this.decoder.flush();
  }

  /** @param {Uint8Array} data */
  decode(data) {
    let cut = 0;
    if (this.strip && data.length) {
      while (cut < this.strip && data[cut] === SPACE) cut += 1;
      this.strip = cut === data.length ? this.strip - cut : 0;
    }
    return this.decoder.push(data.subarray(cut));
  }
}
