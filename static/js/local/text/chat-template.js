// Chat templates: Jinja sources of models, rendered as by the server (app/prompt/chat_template.py).
//
// A template comes with a model. The interpreter `@huggingface/jinja` gives it no more than what is
// passed in here, and it runs in the worker, so one that never ends stops the engine and not the
// page.

import { Environment, Template } from "../../../vendor/jinja/jinja.js";
import { InvalidRequest } from "../shared/errors.js";
import { PythonInterpreter } from "./python-jinja.js";
import { strip } from "./python-text.js";

const MAX_TEMPLATE_CHARS = 256 * 1024;
const MAX_TEXT_CHARS = 4 * 1024 * 1024;
const MAX_REASON_CHARS = 1000;
const MAX_RANGE = 100000;
/** Jinja in Python makes all of them "\n" before it reads a template. */
const LINE_BREAK = /\r\n?/g;
/** Code points that occur in no text; used as marks that survive rendering. */
export const NONCHARACTERS = Array.from({ length: 32 }, (_, i) => String.fromCharCode(0xfdd0 + i));

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  "January", "February", "March", "April", "May", "June",
  "July", "August", "September", "October", "November", "December",
]; // prettier-ignore

/** Names that every template may use. The library's own clock speaks the visitor's language. */
const GLOBALS = {
  true: true,
  false: false,
  none: null,
  True: true,
  False: false,
  None: null,
  raise_exception: (/** @type {string} */ message) => {
    throw new Error(message);
  },
  range,
};

/** Chat template of a model. */
export class ChatTemplate {
  /**
   * `source`: Jinja; null if the model has none. `specialTokens`: texts of special tokens by the names
   * that templates know them by, such as `pad_token`; `bosToken` and `eosToken` are two of them. `now`
   * returns the current time.
   *
   * @param {string | null} source
   * @param {{bosToken?: string | null, eosToken?: string | null, specialTokens?: Record<string, string>, now?: () => Date}} [options]
   */
  constructor(
    source,
    { bosToken = null, eosToken = null, specialTokens = {}, now = () => new Date() } = {},
  ) {
    this.source = source;
    const named = { bos_token: bosToken, eos_token: eosToken, ...specialTokens };
    this.specials = Object.fromEntries(Object.entries(named).filter(([, token]) => token != null));
    this.now = now;
    /** @type {Template | null} */
    this.compiled = null;
  }

  /**
   * Return the text of a conversation, whose messages are {role, content}.
   *
   * With `continueFinal`, the text ends after the content of the last message, which must be the
   * assistant's, so that the model continues it. Throws InvalidRequest if the template refuses the
   * messages or cannot be rendered.
   *
   * @param {FromPage.Message[]} messages
   * @param {{addGenerationPrompt?: boolean, continueFinal?: boolean}} [options]
   */
  render(messages, { addGenerationPrompt = true, continueFinal = false } = {}) {
    if (this.source === null)
      throw new InvalidRequest(
        "this model has no chat template, so it can only continue plain text; send a prompt instead " +
          "of messages",
        "messages",
      );
    if (!messages.length)
      throw new InvalidRequest(
        "messages must contain at least one message, but it is empty",
        "messages",
      );
    if (!continueFinal) return this.text(this.source, messages, addGenerationPrompt);
    const last = messages[messages.length - 1];
    if (last.role !== "assistant")
      throw new InvalidRequest(
        `continue_final needs a last message with the role assistant, but its role is ${last.role}`,
        "messages",
      );
    const mark = unusedMark(messages.map(({ content }) => content));
    const marked = [...messages.slice(0, -1), { ...last, content: `${last.content}${mark} ` }];
    return cutAtMark(this.text(this.source, marked, false), mark);
  }

  /** @param {string} source @param {FromPage.Message[]} messages @param {boolean} addGenerationPrompt */
  text(source, messages, addGenerationPrompt) {
    if (source.length > MAX_TEMPLATE_CHARS)
      throw new InvalidRequest(
        `the model's chat template has ${source.length} characters, but at most ` +
          `${MAX_TEMPLATE_CHARS} are accepted; use completion instead of chat`,
        "messages",
      );
    if (!messages.every(({ content }) => content.isWellFormed()))
      throw new InvalidRequest(
        "the messages and the model's chat template must be valid Unicode, but contain half of a " +
          "surrogate pair",
        "messages",
      );
    try {
      return this.rendered(source, messages, addGenerationPrompt);
    } catch (error) {
      const reason = String(/** @type {Error} */ (error).message).slice(0, MAX_REASON_CHARS);
      throw new InvalidRequest(
        `the model's chat template does not accept these messages: ${reason}`,
        "messages",
      );
    }
  }

  /** @param {string} source @param {FromPage.Message[]} messages @param {boolean} addGenerationPrompt */
  rendered(source, messages, addGenerationPrompt) {
    this.compiled ??= new Template(source.replace(LINE_BREAK, "\n"));
    const names = new Environment();
    const given = {
      ...GLOBALS,
      messages,
      tools: null,
      documents: null,
      add_generation_prompt: addGenerationPrompt,
      strftime_now: (/** @type {string} */ format) => strftime(this.now(), format),
      ...this.specials,
    };
    for (const [name, value] of Object.entries(given)) names.set(name, value);
    const text = new PythonInterpreter(names).run(this.compiled.parsed).value;
    if (text.length > MAX_TEXT_CHARS)
      throw new Error(`its output has more than ${MAX_TEXT_CHARS} characters, the limit here`);
    if (!text.isWellFormed())
      throw new Error("its output contains half of a surrogate pair, which is not valid Unicode");
    return text;
  }
}

/**
 * Return the text before the mark. If the space after the mark is gone, the template trims
 * contents; then the white space before the mark is removed too, as it would have been without a
 * mark.
 *
 * @param {string} text
 * @param {string} mark
 */
function cutAtMark(text, mark) {
  const at = text.lastIndexOf(mark);
  if (at < 0)
    throw new InvalidRequest(
      "the model's chat template leaves out the last message, so it cannot be continued; send the " +
        "request without continue_final",
      "messages",
    );
  return text[at + 1] === " " ? text.slice(0, at) : strip(text.slice(0, at), false);
}

/** Return a noncharacter that occurs in none of `texts`, nor its escape. @param {string[]} texts */
export function unusedMark(texts) {
  for (const mark of NONCHARACTERS)
    if (!texts.some((text) => text.includes(mark) || text.includes(escaped(mark)))) return mark;
  throw new InvalidRequest(
    "the messages use every Unicode noncharacter; leave one out",
    "messages",
  );
}

/**
 * Return a noncharacter as JSON escapes it: so templates may write it that print an object.
 *
 * @param {string} mark
 */
export const escaped = (mark) => `\\u${mark.charCodeAt(0).toString(16)}`;

/** Python's `range`, as a list of at most MAX_RANGE numbers (Jinja's own limit). @param {number[]} ends */
function range(...ends) {
  const [start, stop, step = 1] = ends.length === 1 ? [0, ends[0]] : ends;
  if (step === 0) throw new Error("range() arg 3 must not be zero");
  const length = Math.max(0, Math.ceil((stop - start) / step));
  if (length > MAX_RANGE) throw new Error(`range too big, the limit is ${MAX_RANGE}`);
  return Array.from({ length }, (_, i) => start + i * step);
}

/**
 * Format a time as C does in the English locale, whatever the visitor's language is.
 *
 * @param {Date} date
 * @param {string} format
 * @returns {string}
 */
function strftime(date, format) {
  /** @param {number} n */
  const two = (n) => String(n).padStart(2, "0");
  const hour = date.getHours();
  /** @type {Record<string, () => string>} */
  const fields = {
    Y: () => String(date.getFullYear()),
    y: () => two(date.getFullYear() % 100),
    m: () => two(date.getMonth() + 1),
    d: () => two(date.getDate()),
    e: () => String(date.getDate()).padStart(2),
    B: () => MONTHS[date.getMonth()],
    b: () => MONTHS[date.getMonth()].slice(0, 3),
    A: () => DAYS[date.getDay()],
    a: () => DAYS[date.getDay()].slice(0, 3),
    H: () => two(hour),
    I: () => two(hour % 12 || 12),
    M: () => two(date.getMinutes()),
    S: () => two(date.getSeconds()),
    p: () => (hour < 12 ? "AM" : "PM"),
    F: () => strftime(date, "%Y-%m-%d"),
    T: () => strftime(date, "%H:%M:%S"),
    "%": () => "%",
  };
  return format.replace(/%(.)/gs, (all, field) => fields[field]?.() ?? all);
}
