// Markdown of a model's answer as elements. Nothing that the model wrote becomes markup except
// through Markdown itself: raw HTML is shown as text, pictures as their descriptions, and what the
// parser makes of the rest passes a list of allowed elements and attributes.

import { Marked } from "../../vendor/marked/marked.esm.js";
import DOMPurify from "../../vendor/dompurify/purify.es.js";
import { all } from "../ui/dom.js";

const TAGS =
  "a blockquote br code del em h4 h5 h6 hr li ol p pre strong table tbody td th thead tr ul";
const SANITIZE = {
  ALLOWED_TAGS: TAGS.split(" "),
  ALLOWED_ATTR: ["href", "align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  // DOMPurify would compare their values with that pattern, too, and remove them.
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
/** The name of the speaker above an answer is a heading of level 3. */
const FIRST_HEADING = 4;
const LAST_HEADING = 6;

/** @type {Record<string, string>} */
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
/** @param {string} text */
const escape = (text) => text.replace(/[&<>"']/g, (c) => ESCAPES[c]);

/** @type {import("../../vendor/marked/marked.esm.js").Renderer} */
const renderer = {
  html: ({ text }) => escape(text),
  image: ({ text, href }) => escape(text || href),
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  heading({ tokens, depth }) {
    const level = Math.min(LAST_HEADING, depth + FIRST_HEADING - 1);
    return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>\n`;
  },
};
const parser = new Marked({ gfm: true, breaks: false, async: false, renderer });

/** Return the elements of a text in Markdown, as a DocumentFragment. @param {string} text */
export function renderMarkdown(text) {
  const made = DOMPurify.sanitize(parser.parse(text), SANITIZE);
  for (const link of all(made, "a[href]")) {
    if (!(link instanceof HTMLAnchorElement)) continue;
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
    link.title = link.href;
  }
  for (const wide of all(made, "pre, table")) wide.tabIndex = 0; // they may scroll
  return made;
}
