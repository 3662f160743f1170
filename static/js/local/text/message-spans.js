// Spans of the messages in a rendered conversation (app/prompt/message_spans.py).
//
// A chat template is a program, so the contents cannot simply be searched for. The conversation is
// rendered again with a mark at both ends of every content, and the marks are located in the
// result. Without its marks, the result must be the original text. If not, it is tried again with
// the marks inside the white space at the ends of a content, which some templates trim. If that
// fails too, or the two marks of a message do not both occur exactly once, its span is unknown.

import { InvalidRequest } from "../shared/errors.js";
import { NONCHARACTERS } from "./chat-template.js";
import { markNames } from "./prompts.js";
import { strip } from "./python-text.js";

/**
 * Return {spans, unplaced}: [message index, first character, end] in the order of the text, and the
 * indexes of messages whose span is unknown. `rendered` is what `renderPrompt` returned.
 *
 * @param {import("./chat-template.js").ChatTemplate} template
 * @param {FromPage.Message[]} messages
 * @param {boolean} continueFinal
 * @param {RenderedPrompt} rendered
 */
export function findMessageSpans(template, messages, continueFinal, { parts, names, mark }) {
  const whole = parts.map(({ text }) => text).join("");
  /** @type {{spans: MessageSpan[], unplaced: number[]}} */
  const everyone = { spans: [], unplaced: messages.map((_, i) => i) };
  const free = NONCHARACTERS.filter(
    (each) => each !== mark && !messages.some(({ content }) => content.includes(each)),
  );
  if (free.length < 3) return everyone; // two for the spans and one for `continueFinal`
  const [open, close] = free;
  const texts = messages.map(({ content }) => markNames(content, names, mark));
  for (const enclose of [enclosed, enclosedCore]) {
    const marked = messages.map(({ role }, i) => ({
      role,
      content: enclose(texts[i], `${open}${i}${close}`),
    }));
    let text;
    try {
      text = template.render(marked, { continueFinal });
    } catch (error) {
      if (error instanceof InvalidRequest) continue; // the template does not accept the marks
      throw error;
    }
    const { plain, places } = withoutMarks(mark ? text.replaceAll(mark, "") : text, open, close);
    if (plain === whole) return spansBetween(texts, places);
  }
  return everyone;
}

/** @param {string[]} texts @param {Map<number, number[]>} places */
function spansBetween(texts, places) {
  /** @type {MessageSpan[]} */
  const spans = [];
  /** @type {number[]} */
  const unplaced = [];
  texts.forEach((text, i) => {
    const [first, end, third] = places.get(i) ?? [];
    if (first < end && third === undefined) spans.push([i, first, end]);
    else if (strip(text)) unplaced.push(i);
  });
  return { spans: spans.sort((a, b) => a[1] - b[1]), unplaced };
}

/** @param {string} text @param {string} mark */
const enclosed = (text, mark) => mark + text + mark;

/** @param {string} text @param {string} mark */
function enclosedCore(text, mark) {
  const core = strip(text);
  if (!core) return text;
  const start = text.indexOf(core);
  return text.slice(0, start) + mark + core + mark + text.slice(start + core.length);
}

/**
 * Return the text without marks, and for each message the places in it at which marks were.
 *
 * @param {string} text
 * @param {string} open
 * @param {string} close
 */
function withoutMarks(text, open, close) {
  /** @type {Map<number, number[]>} */
  const places = new Map();
  let plain = "";
  let at = 0;
  for (const match of text.matchAll(new RegExp(`${open}(\\d+)${close}`, "g"))) {
    plain += text.slice(at, match.index);
    const message = Number(match[1]);
    places.set(message, [...(places.get(message) ?? []), plain.length]);
    at = match.index + match[0].length;
  }
  return { plain: plain + text.slice(at), places };
}
