// View of Lens: the prediction after every layer for one token, and the rank of the chosen token.

import { clamp, el, setText, setVars, sizeOf, targetOf } from "../../ui/dom.js";
import { duration, percent, tokenLabel } from "../../ui/format.js";
import { spansUpTo } from "../../interventions/interventions.js";
import { changed } from "../../state.js";
import { focused, focusedRow, focusRow, pin, point, step, view } from "../../view.js";
import { Missing, runKey, sequenceOf } from "../shared/context.js";
import { askLatest, askNewest, AnswerCache } from "../shared/answer-cache.js";
import { drawRanks } from "./rank.js";
import { inWords, ofStage, stageName, whenTop } from "./reading.js";
import { shareColour, ShareLegend } from "../shared/share-colours.js";
import { addHead } from "../shared/table.js";

/**
 * A query: its question, and what is said of its answer.
 *
 * @typedef {ReturnType<typeof questionOf>} Query
 * @typedef {{id: number, text: string, share: number}} Guess
 */

const TOP = 5;
const MAX_BYTES = 16e6;
/** Heights: column names, ruler of ranks, minimum and maximum of a row. */
const HEAD = 20;
const FOOT = 20;
const MIN_ROW = 24;
const MAX_ROW = 44;
/** Log-probabilities this close to the run's count as equal. */
const SAME_LOG = 1e-3;

const cache = new AnswerCache(MAX_BYTES);
/** @type {ShareLegend} */
let legend;
/** @type {HTMLElement} */
let summary;
/** @type {HTMLElement} */
let plate;
/** @type {HTMLTableElement} */
let grid;
/** @type {HTMLCanvasElement} */
let canvas;
/**
 * Rows by stage: {row, guesses: [{cell, word, share}], bar, bits, chance}.
 *
 * @type {ReturnType<typeof newRow>[]}
 */
let rows = [];
/** @type {Query & {arrays: FrameAnswer["arrays"], nStages: number, guess: (stage: number) => Guess[]}} */
let now;
/** The core sample's row while the embedding, which is none of its rows, is focused. @type {Row | null} */
let embedding = null;

/** @type {InstrumentView<TokenFocus>} */
export const tokenLens = {
  name: "token",
  label: "Token",

  setUp(root) {
    const bar = root.appendChild(el("div", "ln-bar"));
    summary = bar.appendChild(el("p", "ln-summary"));
    legend = new ShareLegend();
    bar.append(legend.node);
    plate = root.appendChild(el("div", "ln-plate"));
    grid = plate.appendChild(el("table", "ln-grid"));
    grid.setAttribute("role", "grid");
    grid.setAttribute("aria-label", "Predictions after every layer, the last layer first");
    grid.addEventListener("pointerover", (event) => onPoint(stageOf(event)));
    grid.addEventListener("pointerleave", () => point(null));
    grid.addEventListener("click", (event) => choose(stageOf(event)));
    grid.addEventListener("keydown", onKey);
    plate.append(el("p", "ln-rank-name", "rank of chosen"));
    canvas = plate.appendChild(el("canvas", "ln-rank"));
    canvas.setAttribute("aria-hidden", "true");
  },

  show(context) {
    const query = questionOf(context);
    const answer = cache.get(query.key);
    if (answer) return draw(query, answer);
    return ask(query, context).then((given) => draw(query, cache.set(query.key, given)));
  },

  table() {
    const { nStages, arrays, guess } = now;
    const nth = Array.from({ length: TOP }, (_, i) => [`top ${i + 1}`, `p ${i + 1}`]).flat();
    return {
      columns: ["after", ...nth, "entropy (bits)", "rank of chosen", "p of chosen"],
      rows: Array.from({ length: nStages }, (_, i) => nStages - 1 - i).map((stage) => [
        stageName(stage),
        ...guess(stage).flatMap(({ text, share }) => [text, share]),
        arrays.entropy.values[stage],
        arrays.rank.values[stage] + 1,
        arrays.probability.values[stage],
      ]),
    };
  },
};

/** @param {Query} query @param {Focus} focus */
function ask({ question, segment, newest }, { signal }) {
  return newest ? askNewest("lens", question, segment, signal) : askLatest("lens", question);
}

/**
 * Build the query for the focused token: at a generated token the row that sampled it, at a prompt
 * token the row that predicts the next one.
 *
 * @param {TokenFocus} context
 */
function questionOf(context) {
  const { segment, ids, texts, position } = sequenceOf(context);
  const { token, hello } = context;
  const at = token.prompt ? position : position - 1;
  const chosen = ids[at + 1];
  if (chosen === undefined) throw new Missing("No token follows this one.");
  const written = context.answer.tokens[segment.base + at + 1 - segment.prompt.length];
  const own = at + 1 < segment.prompt.length ? null : written;
  const text = texts[at + 1] || own?.candidates?.find(({ id }) => id === chosen)?.text;
  return {
    key: `${runKey(segment)} ${at}`,
    segment,
    newest: at + 2 === ids.length,
    question: /** @type {FromPage.LogitLens} */ ({
      kind: "logit_lens",
      ids: ids.slice(0, at + 1),
      position: at,
      chosen,
      top: TOP,
      ...spansUpTo(segment, at + 1),
    }),
    name: own?.eos ? "the end of text" : quoted(text ?? ""),
    before: tokenLabel(texts[at], "·"),
    logprob: own?.logprob ?? null,
    chosen,
    vocab: hello.model.vocab_size,
  };
}

/** @param {string} text */
const quoted = (text) => `“${tokenLabel(text, "part of a character")}”`;

/** @param {Query} query @param {FrameAnswer} answer */
function draw(query, { arrays, info }) {
  const nStages = arrays.rank.shape[0];
  const guess = (/** @type {number} */ stage) => {
    const shares = ofStage(arrays.probabilities, stage);
    return [...ofStage(arrays.ids, stage)].map((id, i) => ({
      id,
      text: info.pieces?.[id] ?? String(id),
      share: shares[i],
    }));
  };
  now = { ...query, arrays, nStages, guess };
  if (rows.length !== nStages) build(nStages);
  const ranks = [...arrays.rank.values];
  setText(summary, `After “${query.before}”: ${inWords(ranks, query.name)}`);
  legend.draw();
  const row = heightOfRow(nStages);
  const hot = hotStage();
  for (let stage = 0; stage < nStages; stage += 1) drawRow(stage, hot);
  drawRanks(canvas, { ranks, head: HEAD, row, vocab: query.vocab, hot });
  return sourceOf(query, arrays, info);
}

/** @param {number} nStages */
function heightOfRow(nStages) {
  const [, height] = sizeOf(plate);
  const row = clamp(Math.floor((height - HEAD - FOOT) / nStages), MIN_ROW, MAX_ROW);
  setVars(plate, { "--ln-row": `${row}px`, "--ln-high": `${HEAD + nStages * row + FOOT}px` });
  return row;
}

/** @param {Query} query @param {FrameAnswer["arrays"]} options @param {FrameAnswer["info"]} info */
function sourceOf({ logprob, name }, { probability }, info) {
  const time = info.ms === undefined ? "" : ` in ${duration(info.ms)}`;
  const source = `Recomputed from this run's tokens${time}`;
  const last = probability.values.at(-1) ?? NaN;
  if (logprob === null) return `${source}; before temperature and filters.`;
  const given = `${source}; the last layer gives ${name} ${percent(last)} %`;
  return Math.abs(Math.log(last) - logprob) <= SAME_LOG
    ? `${given}, as in the run, before temperature and filters.`
    : `${given}, but the run measured ${percent(Math.exp(logprob))} %.`;
}

// ---- the table -------------------------------------------------------------------------------

/** @param {number} nStages */
function build(nStages) {
  rows = Array.from({ length: nStages }, (_, stage) => newRow(stage));
  const nth = Array.from({ length: TOP }, (_, i) => `top ${i + 1}`);
  grid.replaceChildren();
  addHead(grid, ["after", ...nth, "entropy", "chosen"]);
  grid.createTBody().append(...rows.map(({ row }) => row).reverse());
}

/** @param {number} stage */
function newRow(stage) {
  const row = el("tr");
  row.dataset.stage = String(stage);
  row.tabIndex = -1;
  const name = el("th", "", stageName(stage));
  name.scope = "row";
  const guesses = Array.from({ length: TOP }, () => {
    const cell = el("td", "ln-guess");
    const box = cell.appendChild(el("span"));
    return { cell, box, word: box.appendChild(el("b")), share: box.appendChild(el("small")) };
  });
  const spread = el("td", "ln-spread");
  const bar = spread.appendChild(el("i"));
  const bits = spread.appendChild(el("span"));
  const chance = el("td", "ln-chance");
  row.append(name, ...guesses.map(({ cell }) => cell), spread, chance);
  return { row, guesses, bar, bits, chance };
}

/** @param {number} stage @param {number | null} hot */
function drawRow(stage, hot) {
  const { row, guesses, bar, bits, chance } = rows[stage];
  const { arrays, chosen, vocab, guess } = now;
  guess(stage).forEach(({ id, text, share }, i) => {
    const at = guesses[i];
    setText(at.word, tokenLabel(text, "–"));
    setText(at.share, percent(share));
    at.cell.classList.toggle("hit", id === chosen);
    at.box.style.borderBottomColor = shareColour(share);
  });
  const entropy = arrays.entropy.values[stage];
  setVars(bar, { "--q": entropy / Math.log2(vocab) });
  setText(bits, entropy.toFixed(1));
  setText(chance, percent(arrays.probability.values[stage]));
  row.classList.toggle("hot", stage === hot);
  row.classList.toggle("settled", stage === whenTop([...arrays.rank.values]).settled);
  row.tabIndex = stage === (hot ?? 0) ? 0 : -1;
}

// ---- focus -----------------------------------------------------------------------------------

/** @param {Event} event */
const stageOf = (event) => {
  const stage = targetOf(event).closest("tr")?.dataset.stage;
  return stage === undefined ? null : Number(stage);
};

function hotStage() {
  const row = focusedRow();
  if (embedding !== view.row) embedding = null;
  if (embedding && !view.hoverRow) return 0;
  return row ? row.layer + 1 : null;
}

/** @param {number | null} stage */
function onPoint(stage) {
  if (stage) point(focused(), { layer: stage - 1, part: 0 });
  else point(null);
}

/** @param {number | null} stage */
function choose(stage) {
  if (stage === null) return;
  if (stage) pin(focused(), { layer: stage - 1, part: 0 });
  else embedding = view.row;
  changed("look");
}

/** Up and down arrows move over the layers, left and right over the tokens. @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !now) return;
  const stage = stageOf(event) ?? 0;
  const moves = new Map([["ArrowUp", 1], ["ArrowDown", -1]]);
  const steps = new Map([["ArrowLeft", -1], ["ArrowRight", 1]]);
  const along = steps.get(event.key);
  const across = moves.get(event.key);
  if (along) step(along);
  else if (across) {
    const to = clamp(stage + across, 0, now.nStages - 1);
    if (!to) embedding = view.row;
    const row = to ? { layer: to - 1, part: 0 } : view.row;
    if (row) focusRow(row);
    rows[to].row.focus();
  } else return;
  event.preventDefault();
}
