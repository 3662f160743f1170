// Bytes of each token, derived from the decoder of a tokenizer.json (gpu/text/token_bytes.py).
//
// Text is decoded from bytes and not by the tokenizer's own decoder, because that one needs whole
// texts: streamed text would not be a prefix of the final text.

const BYTE_TOKEN = /^<0x([0-9A-Fa-f]{2})>$/;
const SUPPORTED = "ByteLevel, Metaspace, WordPiece, or Replace + ByteFallback + Fuse + Strip";
/** Replacements of WordPiece's `cleanup` for a word and the space before it. @type {[string, string][]} */
const CLEAN_UP = [
  [" .", "."],
  [" ?", "?"],
  [" !", "!"],
  [" ,", ","],
  [" n't", "n't"],
  [" 'm", "'m"],
  [" 's", "'s"],
  [" 've", "'ve"],
  [" 're", "'re"],
];
const utf8 = new TextEncoder();

/**
 * Rules that turn one token into bytes.
 *
 *   byteLevel     the token's characters stand for bytes, as in GPT-2
 *   byteFallback  a token "<0xE2>" stands for that byte
 *   replacements  [from, to] in a token's text, in order
 *   strip         number of spaces removed from the beginning of a text
 *   suffix        prefix of tokens that continue a word, as "##ing"; other tokens get a space in
 *                 front. null if tokens contain their own spaces
 */
export class TokenBytes {
  byteLevel = false;
  byteFallback = false;
  /** @type {[from: string, to: string][]} */
  replacements = [];
  strip = 0;
  /** @type {string | null} */
  suffix = null;

  /**
   * @param {Partial<Pick<TokenBytes, "byteLevel" | "byteFallback" | "replacements" | "strip" | "suffix">>} rules
   */
  constructor(rules) {
    Object.assign(this, rules);
  }

  /**
   * Return the rules for the `decoder` of a tokenizer.json; throws for an unsupported one.
   *
   * @param {TokenDecoder | null} decoder
   */
  static fromDecoder(decoder) {
    if (!decoder) return new TokenBytes({ strip: 1, suffix: "" });
    const steps = flat(decoder);
    const kinds = steps.map(({ type }) => type);
    if (kinds.length === 1 && kinds[0] === "ByteLevel") return new TokenBytes({ byteLevel: true });
    const [only] = steps;
    if (steps.length === 1 && only.type === "WordPiece") {
      const replacements = only.cleanup ? CLEAN_UP : [];
      return new TokenBytes({ replacements, strip: 1, suffix: String(only.prefix) });
    }
    /** @type {[string, string][]} */
    const replacements = [];
    let strip = 0;
    steps.forEach((step, i) => {
      const fused = kinds.slice(0, i).includes("Fuse");
      if (step.type === "Metaspace" && !fused) {
        replacements.push([step.replacement, " "]);
        strip += prependsSpace(step) ? 1 : 0;
      } else if (step.type === "Replace" && !fused && "String" in step.pattern) {
        replacements.push([step.pattern.String, step.content]);
      } else if (step.type === "Strip" && fused && step.content === " " && step.stop === 0) {
        strip += step.start;
      } else if (step.type !== "ByteFallback" && step.type !== "Fuse") {
        throw new Error(
          `tokenizer.json: decoder ${JSON.stringify(step)} is not supported; supported: ${SUPPORTED}`,
        );
      }
    });
    return new TokenBytes({ byteFallback: kinds.includes("ByteFallback"), replacements, strip });
  }

  /**
   * Return the bytes of a token in the model's vocabulary (added tokens are plain text).
   *
   * @param {string} token
   */
  of(token) {
    if (this.byteLevel) {
      const bytes = Array.from(token, (char) => BYTE_OF_CHAR.get(char) ?? -1);
      return bytes.includes(-1) ? utf8.encode(token) : Uint8Array.from(bytes);
    }
    const byte = this.byteFallback && BYTE_TOKEN.exec(token);
    if (byte) return Uint8Array.of(parseInt(byte[1], 16));
    let text = token;
    if (this.suffix !== null) {
      const goesOn = this.suffix && text.startsWith(this.suffix);
      text = goesOn ? text.slice(this.suffix.length) : ` ${text}`;
    }
    for (const [from, to] of this.replacements) text = text.replaceAll(from, () => to);
    return utf8.encode(text);
  }
}

/** @param {TokenDecoder} decoder @returns {TokenDecoder[]} */
function flat(decoder) {
  return decoder.type === "Sequence" ? decoder.decoders.flatMap(flat) : [decoder];
}

/**
 * Does a Metaspace put a space in front of a text? Older files say it by another name.
 *
 * @param {SpaceInFront} metaspace
 */
const prependsSpace = ({ prepend_scheme: scheme, add_prefix_space: adds }) =>
  scheme === undefined ? adds !== false : scheme !== "never";

/**
 * GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and up.
 *
 * @type {Map<string, number>}
 */
const BYTE_OF_CHAR = new Map();
{
  /** @param {number} byte */
  const isPrintable = (byte) =>
    (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte < 0xad) || byte >= 0xae;
  let next = 0x100;
  for (let byte = 0; byte < 256; byte += 1)
    BYTE_OF_CHAR.set(String.fromCharCode(isPrintable(byte) ? byte : next++), byte);
}
