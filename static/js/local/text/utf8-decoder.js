// UTF-8 in pieces, each as Python's incremental decoder gives it, so that every token has the text
// that it has on the server. Browsers' `TextDecoder` gives the same text at other times.

const REPLACEMENT = "\ufffd";

/**
 * Decoder of bytes that come in pieces. Bytes that can no longer become a character give U+FFFD.
 */
export class Utf8Decoder {
  /** @type {number[]} */
  surrogate = [];
  code = 0;
  /** Bytes of the unfinished character. */
  missing = 0;
  low = 0x80;
  high = 0xbf;

  begin() {
    this.code = 0;
    this.missing = 0;
    this.low = 0x80;
    this.high = 0xbf;
  }

  /** Return the characters that these bytes complete. @param {ArrayLike<number> & Iterable<number>} bytes */
  push(bytes) {
    let text = "";
    const data = bytes.length ? [...this.surrogate.splice(0), ...bytes] : [];
    for (const [i, byte] of data.entries()) {
      if (i === data.length - 1 && this.beginsSurrogate(byte)) {
        this.surrogate.push(byte);
        break;
      }
      if (this.missing && !(byte >= this.low && byte <= this.high)) {
        this.begin();
        text += REPLACEMENT;
      }
      text += this.missing ? this.proceed(byte) : this.lead(byte);
    }
    return text;
  }

  /** Return U+FFFD if a character is unfinished, else "". */
  flush() {
    const unfinished = this.missing > 0;
    const nBytes = this.surrogate.splice(0).length;
    this.begin();
    return unfinished ? REPLACEMENT.repeat(1 + nBytes) : "";
  }

  /**
   * Is this the second byte of half a surrogate pair? Python waits for the third to refuse it.
   *
   * @param {number} byte
   */
  beginsSurrogate(byte) {
    return this.missing === 2 && this.high === 0x9f && byte > this.high && byte <= 0xbf;
  }

  /** @param {number} byte */
  lead(byte) {
    if (byte < 0x80) return String.fromCharCode(byte);
    if (byte < 0xc2 || byte > 0xf4) return REPLACEMENT;
    this.missing = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    this.code = byte & (0x3f >> this.missing);
    if (byte === 0xe0) this.low = 0xa0;
    if (byte === 0xed) this.high = 0x9f;
    if (byte === 0xf0) this.low = 0x90;
    if (byte === 0xf4) this.high = 0x8f;
    return "";
  }

  /** @param {number} byte */
  proceed(byte) {
    this.code = (this.code << 6) | (byte & 0x3f);
    this.low = 0x80;
    this.high = 0xbf;
    this.missing -= 1;
    return this.missing ? "" : String.fromCodePoint(this.code);
  }
}

/** Return the text of bytes that are whole. @param {Uint8Array} bytes */
export function decodeUtf8(bytes) {
  const decoder = new Utf8Decoder();
  return decoder.push(bytes) + decoder.flush();
}
