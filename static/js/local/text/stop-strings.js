// Stop strings that may span several tokens, without ever showing part of one
// (gpu/text/stop_strings.py).
//
// Tokens whose text may be the beginning of a stop string are held back until that is decided. The
// text ends at the first character that completes any stop string; if several end there, the
// longest is removed. The result depends on the text alone, not on its tokenization.

/**
 * Stop string matcher of one text. Every pushed token (any value) is returned exactly once, in
 * order, as [token, text to show for it].
 *
 * @template T
 */
export class StopMatcher {
  /** `stops`: strings, none empty; without any, every token is returned at once. @param {string[]} stops */
  constructor(stops) {
    this.stops = stops;
    this.longest = Math.max(0, ...stops.map((stop) => stop.length));
    /** @type {[T, string][]} */
    this.held = [];
    this.text = ""; // of the held tokens
  }

  /**
   * Add one token; return the tokens that are decided, and whether the text ended: {released,
   * stopped}. At the end all tokens are returned: the one in which the stop string begins with its
   * text before it, those after it with "". Nothing may be pushed after that.
   *
   * @param {T} token
   * @param {string} text
   */
  push(token, text) {
    this.held.push([token, text]);
    this.text += text;
    let first = null;
    for (const stop of this.stops) {
      const start = this.text.indexOf(stop);
      if (start < 0) continue;
      const end = start + stop.length;
      if (!first || end < first.end || (end === first.end && start < first.start))
        first = { start, end };
    }
    if (first) return { released: this.cut(first.start), stopped: true };
    return { released: this.release(this.undecided()), stopped: false };
  }

  /** Return the held tokens: the text ended for another reason. */
  flush() {
    return this.release(this.text.length);
  }

  /** The start of the longest suffix of the held text that is a prefix of a stop string. */
  undecided() {
    const { length } = this.text;
    for (let start = Math.max(0, length - this.longest + 1); start < length; start += 1) {
      const suffix = this.text.slice(start);
      if (this.stops.some((stop) => stop.startsWith(suffix))) return start;
    }
    return length;
  }

  /** Return the tokens that end at or before `end` in the held text. @param {number} end */
  release(end) {
    let n = 0;
    let at = 0;
    while (n < this.held.length && at + this.held[n][1].length <= end) {
      at += this.held[n][1].length;
      n += 1;
    }
    this.text = this.text.slice(at);
    return this.held.splice(0, n);
  }

  /** Return all held tokens, with their text truncated at `end`. @param {number} end */
  cut(end) {
    let at = 0;
    /** @type {[T, string][]} */
    const released = this.held.map(([token, text]) => {
      const shown = text.slice(0, Math.max(0, end - at));
      at += text.length;
      return [token, shown];
    });
    this.held = [];
    this.text = "";
    return released;
  }
}
