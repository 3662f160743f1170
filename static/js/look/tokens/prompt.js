// View of Tokens: the prompt as tokenized for the model, and by another tokenizer.

import { byId, drawPairs, el } from "../../ui/dom.js";
import { isSendKey } from "../../ui/enter-key.js";
import { count } from "../../ui/format.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";
import { latest, tokenize } from "../../net/inspect.js";
import { toolsField } from "../../chat/answer-fields.js";
import { attachedFiles, withFiles } from "../../chat/attachments.js";
import { messagesBefore } from "../../chat/session.js";
import { changed, lastTurn, shownAnswer, state } from "../../state.js";
import { point, view } from "../../view.js";
import { Missing } from "../shared/context.js";
import { Pieces } from "./pieces.js";

/**
 * A prompt: its text, and its question; `run`: its segment if it is in the core sample.
 *
 * @typedef {{draft: boolean, text: string, question: Countable | null, run: Segment | null}} Source
 */

const TYPED_AFTER_MS = 120;
/** Allowance for the growth of a request when encoded as JSON. */
const JSON_GROWTH = 1.02;
const composer = byId("prompt");

const COLUMNS = ["tokenizer", "token", "id", "text", "bytes", "special", "role"].map((name) =>
  name === "id" || name === "token" ? { name, format: count } : name,
);

/** Prompt shown: "draft" or "last". */
let wanted = "draft";
/** @type {Source | null} */
let source = null;
/** @type {ToPage.Tokenized | null} */
let answer = null;
/** The request that `answer` belongs to, and the model whose tokenizer it is, as JSON. */
let answered = "";
/** @type {HTMLTextAreaElement} */
let field;
/** @type {HTMLElement} */
let counts;
/** @type {Pieces} */
let pieces;
/** @type {HTMLFieldSetElement} */
let choices;

/** @type {InstrumentView<Focus>} */
export const prompt = {
  name: "prompt",
  label: "Prompt",

  setUp(root) {
    root.append(buildTyped(), buildCut());
  },

  async show({ signal, index, hello }) {
    const shown = (source = sourceNow());
    drawTyped(shown);
    if (!shown.question) {
      answer = null;
      answered = "";
      drawCut(null);
      return "";
    }
    const question = JSON.stringify(shown.question);
    const asked = JSON.stringify([hello.model.name, question]);
    let cut = answer;
    if (!cut || asked !== answered) {
      if (question.length * JSON_GROWTH > hello.limits.message_bytes)
        throw new Missing("This prompt is too long for one request to the server.");
      if (shown.draft) await pause(TYPED_AFTER_MS, signal);
      answer = cut = await latest("tokens", shown.question, tokenize);
      answered = asked;
    }
    drawCut(cut);
    const { run } = shown;
    pieces.mark(run && index !== null && index < 0 ? run.prompt.length + index : null);
    return provenance(shown, cut);
  },

  table() {
    /** @param {string} name @param {(ToPage.Piece & Partial<ToPage.PromptPiece>)[]} list */
    const of = (name, list) =>
      list.map(({ id, text, bytes, special, role }, i) => [
        name,
        i + 1,
        id,
        text,
        bytes,
        special ? "yes" : "",
        role ?? "",
      ]);
    return {
      columns: COLUMNS,
      rows: answer
        ? [
            ...of(answer.plain.name, answer.tokens),
            ...of(answer.compare.name, answer.compare.tokens),
          ]
        : [],
    };
  },
};

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
const pause = (ms, signal) =>
  new Promise((resolve) => {
    setTimeout(resolve, ms);
    signal.addEventListener("abort", () => resolve());
  });

// ---- choice of prompt ------------------------------------------------------------------------

/**
 * Return {draft, text, question, run}; `run` is its segment if it is in the core sample.
 *
 * @returns {Source}
 */
function sourceNow() {
  const last = requestOf(lastTurn());
  const draft = composer.value;
  const isEmpty = draft.trim() === "" && !attachedFiles().length; // files may be sent without a text
  if (last && (wanted === "last" || isEmpty)) return last;
  const text = withFiles(state.mode === "chat" ? draft.trim() : draft);
  /** @type {Countable | null} */
  const question = isEmpty
    ? null
    : state.mode === "chat"
      ? { messages: [...messagesBefore(), { role: "user", content: text }], ...toolsField() }
      : { prompt: text };
  return { draft: true, text: draft, question, run: null };
}

/** @param {Turn | null} turn @returns {Source | null} */
function requestOf(turn) {
  const shown = shownAnswer(turn);
  const segment = shown?.segment;
  if (!shown || !segment?.request) return null;
  const { messages, prompt, continue_final, tools } = segment.originalRequest;
  const question = messages
    ? { messages, continue_final: !!continue_final, ...(tools && { tools }) }
    : { prompt };
  const first = shown.promptSegment === segment && view.answer === shown && segment.accepted;
  return {
    draft: false,
    text: (messages ? messages.at(-1)?.content : prompt) ?? "",
    question,
    run: first ? segment : null,
  };
}

/** @param {Source} source @param {ToPage.Tokenized} answer */
function provenance(source, answer) {
  if (source.draft) return "Computed by the server's tokenizer from the draft in the message field.";
  const same =
    source.run?.prompt.length === answer.tokens.length &&
    source.run.prompt.every(({ id }, i) => id === answer.tokens[i].id);
  return same
    ? `Recomputed by the server's tokenizer: the same ${count(answer.tokens.length)} ids as in ` +
        "this run."
    : "Recomputed by the server's tokenizer from the last request.";
}

// ---- text ------------------------------------------------------------------------------------

function buildTyped() {
  const box = el("div", "column tk-typed");
  choices = newSegmented({
    legend: "Prompt",
    name: "look-prompt",
    options: [
      ["draft", "Draft"],
      ["last", "Last request"],
    ],
    onChange(value) {
      wanted = value;
      changed("look");
    },
  });
  field = el("textarea");
  field.id = "look-draft";
  field.setAttribute("aria-label", "Prompt");
  field.addEventListener("input", onType);
  field.addEventListener("keydown", onKey);
  counts = el("dl", "pairs tk-counts");
  box.append(choices, field, counts);
  return box;
}

/** The draft is the composer's: typing here changes both. */
function onType() {
  wanted = "draft";
  composer.value = field.value;
  composer.dispatchEvent(new Event("input", { bubbles: true }));
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (!isSendKey(event)) return;
  event.preventDefault();
  byId("composer").requestSubmit();
}

/** @param {Source} source */
function drawTyped({ draft, text }) {
  drawSegmented(choices, draft ? "draft" : "last", (value) => value === "last" && !requestOf(lastTurn()));
  if (field.value !== text) field.value = text;
  field.readOnly = !draft && composer.value !== "";
  field.placeholder = byId("prompt").placeholder;
}

// ---- tokens ----------------------------------------------------------------------------------

function buildCut() {
  const box = el("div", "tk-cut");
  const list = box.appendChild(el("div", "tk-list"));
  const detail = box.appendChild(el("p", "readout tk-detail"));
  pieces = new Pieces(list, detail, onHover);
  return box;
}

/** Focus the hovered prompt token in the core sample. @param {number | null} i */
function onHover(i) {
  if (source?.run) point(i === null ? null : i - source.run.prompt.length);
}

/** @param {ToPage.Tokenized | null} cut */
function drawCut(cut) {
  pieces.draw(cut);
  drawPairs(counts, cut ? figures(cut) : []);
}

/** @param {ToPage.Tokenized} tokenized @returns {[name: string, value: string][]} */
function figures({ tokens: all, plain, compare, n_chars, n_bytes, n_words }) {
  /** @param {ToPage.Tokenization} cut */
  const perWord = ({ n_tokens: n, tokens_per_word: each }) =>
    each === null ? count(n) : `${count(n)}, ${each.toFixed(2)} per word`;
  return [
    [all.some(({ role }) => role) ? "tokens, with the template" : "tokens", count(all.length)],
    ["tokens, text alone", perWord(plain)],
    [`${compare.name}, text alone`, perWord(compare)],
    ["words", count(n_words)],
    ["characters, bytes", `${count(n_chars)}, ${count(n_bytes)}`],
  ];
}
