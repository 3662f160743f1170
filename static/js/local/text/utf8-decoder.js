// @ts-nocheck
// UTF-8 in pieces, each as Python's incremental decoder gives it, so that every token has the text
// that it has on the server. Browsers' `TextDecoder` gives the same text at other times.

const REPLACEMENT = "\ufffd";

/**
 * Decoder of bytes that come in pieces. Bytes that can no longer become a character give U+FFFD.
 */
export class Utf8Decoder {
  constructor() {
    this.surrogate = [];
    this.begin();
  }

  begin() {
    this.code = 0;
    this.missing = 0; // bytes of the unfinished character
    this.low = 0x80;
    this.high = 0xbf;
  }

  /** Return the characters that these bytes complete. */
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

  /** Is this the second byte of half a surrogate pair? Python waits for the third to refuse it. */
  beginsSurrogate(byte) {
    return this.missing === 2 && this.high === 0x9f && byte > this.high && byte <= 0xbf;
  }

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

  proceed(byte) {
    this.code = (this.code << 6) | (byte & 0x3f);
    this.low = 0x80;
    this.high = 0xbf;
    this.missing -= 1;
    return this.missing ? "" : String.fromCodePoint(this.code);
  }
}

/** Return the text of bytes that are whole. */
export function decodeUtf8(bytes) {
  const decoder = new Utf8Decoder();
  return decoder.push(bytes) + decoder.flush();
}
