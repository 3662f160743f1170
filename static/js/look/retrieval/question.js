// "Question": from a question to the prompt, step by step: its vector, the nearest chunks, and the prompt
// that is made of them.

import { toolsField } from "../../chat/answer-fields.js";
import { blockOf, withFiles } from "../../chat/attachments.js";
import { sendMessage } from "../../chat/composer.js";
import { messagesBefore } from "../../chat/session.js";
import { ask } from "../../net/ask.js";
import { count as countTokens } from "../../net/inspect.js";
import { changed, ready, state } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { isSendKey } from "../../ui/enter-key.js";
import { count, duration, plural, sentence, tokenLabel } from "../../ui/format.js";
import { Strip } from "../forward/strip.js";
import { shareBar } from "../shared/table.js";

/** @typedef {Answers.SearchAnswer} SearchAnswer */
/** @typedef {Answers.FoundChunk} FoundChunk */

const EXAMPLE = "What is it about?";
const TOP = "3";

/**
 * The answer to `asked`, the question; `tokens` of the prompt that was counted, `countedFor` with its model.
 *
 * @type {{asked: string, search: SearchAnswer, tokens: number | null, countedFor: string} | null}
 */
let found = null;
let problem = "";
let isRunning = false;

const at = {
  question: Object.assign(el("textarea"), { rows: 2, maxLength: 2000, placeholder: EXAMPLE }),
  top: Object.assign(el("input"), { type: "number", min: "1", max: "20", value: TOP }),
  find: newButton("Find chunks", find, "send"),
  says: el("p", "rt-says"),
  steps: [el("section"), el("section", "column"), el("section", "column")],
  pieces: el("p", "rt-pieces"),
  chunks: el("ol", "rt-chunks"),
  prompt: el("div", "rt-prompt"),
  tokens: el("p", "sub"),
};
/** @type {HTMLButtonElement} */
let send;
/** @type {Strip} */
let strip;

/** @param {() => void} onAsked called when the prompt was sent @returns {InstrumentView<Focus>} */
export const newQuestionView = (onAsked) => ({
  name: "question",
  label: "Question",

  setUp(root) {
    send = newButton("Ask the model", () => askModel(onAsked), "send");
    const left = root.appendChild(el("div", "column rt-asked"));
    left.append(buildForm(), at.says, at.steps[0]);
    root.append(at.steps[1], at.steps[2]);
    at.steps[0].append(el("h3", "", "1 Its vector"), at.pieces);
    strip = new Strip(at.steps[0]);
    at.steps[1].append(el("h3", "", "2 Nearest chunks"), at.chunks);
    at.prompt.tabIndex = 0; // it scrolls
    at.prompt.setAttribute("role", "group");
    at.prompt.setAttribute("aria-label", "Prompt, its chunks marked");
    at.steps[2].append(el("h3", "", "3 The prompt"), at.prompt, at.tokens, send);
  },

  show() {
    recount();
    draw();
    if (!found) return "Nothing is computed until you ask for the chunks.";
    const { encode_ms: encode, search_ms: search, compared, similarity } = found.search;
    const score = similarity === "dot" ? "inner product with the question’s vector" : "cosine of its vector and the question’s";
    return (
      `Measured on the server: the vector took ${duration(encode)}, FAISS compared it with ${plural(compared, "chunk")} in ` +
      `${duration(search)}. Score: ${score}.`
    );
  },

  table: () => ({
    columns: ["rank", "chunk", "document", "page", "score", "tokens", "text"],
    rows: found?.search.found.map(({ number, document, page, score, tokens, text }, i) => [i + 1, number, document, page, score, tokens, text]) ?? [],
  }),
});

function buildForm() {
  const form = el("form", "column");
  form.setAttribute("aria-label", "Question to the documents");
  form.addEventListener("submit", (event) => event.preventDefault());
  at.question.setAttribute("aria-label", "Your question");
  at.question.addEventListener("keydown", (event) => {
    if (!isSendKey(event)) return;
    event.preventDefault();
    find();
  });
  at.says.setAttribute("role", "status");
  const bar = el("div", "controls");
  const label = el("label", "", "Chunks ");
  label.append(at.top);
  bar.append(label, at.find);
  form.append(at.question, bar);
  return form;
}

// ---- finding and asking ---------------------------------------------------------------------------

async function find() {
  if (isRunning) return;
  const asked = at.question.value.trim();
  problem = "";
  isRunning = true;
  changed("look");
  try {
    const body = { question: asked, top: Number(at.top.value) };
    const search = await ask("api/retrieval/search", { method: "POST", body });
    found = { asked, search, tokens: null, countedFor: "" };
  } catch (error) {
    problem = sentence(/** @type {Problem} */ (error).message);
  }
  isRunning = false;
  changed("look");
}

/** Count the prompt again once it is another one, or another model reads it. */
function recount() {
  const now = found;
  if (!now || !ready() || state.active) return;
  const asked = countable(now);
  const key = JSON.stringify([state.hello?.model.name, asked]);
  if (now.countedFor === key) return;
  Object.assign(now, { tokens: null, countedFor: key });
  const show = (/** @type {number | null} */ tokens) => {
    if (now.countedFor !== key) return;
    now.tokens = tokens;
    changed("look");
  };
  countTokens(asked).then(({ tokens }) => show(tokens), () => show(null));
}

/** @param {NonNullable<typeof found>} now @returns {Countable} */
function countable(now) {
  const content = withFiles(now.asked, filesOf(now.search));
  if (state.mode !== "chat") return { prompt: content };
  return { messages: [...messagesBefore(), { role: "user", content }], ...toolsField() };
}

/** The chunks as files of a message. @param {SearchAnswer} search @returns {AttachedText[]} */
const filesOf = ({ found: chunks }) =>
  chunks.map((chunk) => ({ name: titleOf(chunk), block: blockOf(titleOf(chunk), chunk.text.trim()) }));

/** @param {FoundChunk} chunk */
const titleOf = ({ number, document, page }) => `${document}${page === null ? "" : `, page ${page}`}, chunk ${number}`;

/** @param {() => void} onAsked */
function askModel(onAsked) {
  if (!found) return;
  if (sendMessage({ text: found.asked, files: filesOf(found.search) })) onAsked();
  else problem = sentence(state.problem?.message ?? "the prompt could not be sent");
  changed("look");
}

// ---- drawing --------------------------------------------------------------------------------------

function draw() {
  at.find.disabled = isRunning;
  at.says.classList.toggle("bad", !!problem);
  setText(at.says, problem || (isRunning ? "Looking for the nearest chunks …" : ""));
  for (const step of at.steps) step.hidden = !found;
  if (!found) return;
  const { asked, search, tokens } = found;
  at.pieces.replaceChildren(...search.pieces.map((piece) => el("span", "", tokenLabel(piece, "·"))));
  strip.draw({ name: "vector of the question", values: search.vector }, null);
  const most = Math.max(...search.found.map(({ score }) => score), 1e-9);
  at.chunks.replaceChildren(...search.found.map((chunk) => itemOf(chunk, most)));
  at.prompt.replaceChildren(...filesOf(search).map(({ block }) => el("mark", "", block)), asked);
  setText(at.tokens, tokens === null ? "" : `${plural(tokens, "token")} with the conversation so far, of ${count(state.hello?.limits.context ?? 0)} that fit.`);
  send.disabled = !ready() || !!state.active;
}

/** @param {FoundChunk} chunk @param {number} most */
function itemOf(chunk, most) {
  const item = el("li");
  const head = el("p", "rt-head");
  head.append(el("b", "", titleOf(chunk)), shareBar(Math.max(0, chunk.score) / most), el("span", "n", chunk.score.toFixed(3).replace("-", "−")));
  item.append(head, el("p", "rt-text", chunk.text.trim()));
  return item;
}
