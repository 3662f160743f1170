// @ts-nocheck
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
  /** `tokenizer` has `tokenBytes(id)` and `nStrippedSpaces`. */
  constructor(tokenizer, promptIds = []) {
    this.tokenizer = tokenizer;
    this.decoder = new Utf8Decoder();
    this.strip = tokenizer.nStrippedSpaces;
    const tail = [];
    let nBytes = 0;
    for (let i = promptIds.length - 1; i >= 0; i -= 1) {
      if (nBytes > Math.max(this.strip, MAX_INCOMPLETE)) break; // earlier tokens have no effect
      tail.push(tokenizer.tokenBytes(promptIds[i]));
      nBytes += tail.at(-1).length;
    }
    for (const data of tail.reverse()) this.decode(data);
  }

  /** Return the text that token `id` completes. */
  push(id) {
    return this.decode(this.tokenizer.tokenBytes(id));
  }

  /** Return the end of the text: U+FFFD if it ends inside a character, else "". */
  flush() {
    return this.decoder.flush();
  }

  decode(data) {
    let cut = 0;
    if (this.strip && data.length) {
      while (cut < this.strip && data[cut] === SPACE) cut += 1;
      this.strip = cut === data.length ? this.strip - cut : 0;
    }
    return this.decoder.push(data.subarray(cut));
  }
}
