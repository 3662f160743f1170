// The logit lens: what the model would say after every layer, and how the chosen token rises.
//
// nostalgebraist 2020, "interpreting GPT: the logit lens".

import { clamp, el, setText, setVars, sizeOf } from "../dom.js";
import { duration, percent, tokenLabel } from "../format.js";
import { asTheyRan } from "../reach.js";
import { changed } from "../state.js";
import { focused, focusedRow, pin, point, step, view } from "../view.js";
import { Missing, sequenceOf } from "./context.js";
import { askLatest, askNewest, Kept } from "./kept.js";
import { drawRanks } from "./lensrank.js";
import { inWords, ofStage, stageName, whenTop } from "./lensreading.js";
import { shareColour, ShareLegend } from "./shares.js";

const TOP = 5;
const MOST_BYTES = 16e6;
/** Heights: the names of columns, the ruler of ranks, and of a row at least and at most. */
const HEAD = 20;
const FOOT = 20;
const LEAST_ROW = 24;
const MOST_ROW = 44;
/** A logarithm of a probability this close to the run's is the run's. */
const SAME_LOG = 1e-3;

const kept = new Kept(MOST_BYTES);
let legend = null;
let says = null;
let plate = null;
let grid = null;
let canvas = null;
/** Rows by stage: {row, guesses: [{cell, word, share}], bar, bits, chance}. */
let rows = [];
let now = null;
/** The embedding is looked at, which is no row of the core: the core's row meanwhile. */
let embedding = null;

export const lens = {
  needs: "token",
  asks: true,

  setUp(root) {
    const bar = root.appendChild(el("div", "ln-bar"));
    says = bar.appendChild(el("p", "ln-says"));
    legend = new ShareLegend();
    bar.append(legend.node);
    plate = root.appendChild(el("div", "ln-plate"));
    grid = plate.appendChild(el("table", "ln-grid"));
    grid.setAttribute("role", "grid");
    grid.setAttribute("aria-label", "Guesses after every layer, the last layer first");
    grid.addEventListener("pointerover", ({ target }) => onPoint(stageOf(target)));
    grid.addEventListener("pointerleave", () => point(null));
    grid.addEventListener("click", ({ target }) => choose(stageOf(target)));
    grid.addEventListener("keydown", onKey);
    plate.append(el("p", "ln-rank-name", "rank of the chosen"));
    canvas = plate.appendChild(el("canvas", "ln-rank"));
    canvas.setAttribute("aria-hidden", "true");
  },

  show(context) {
    const asked = questionOf(context);
    const answer = kept.get(asked.key);
    if (answer) return draw(asked, answer);
    return ask(asked, context).then((given) => draw(asked, kept.set(asked.key, given)));
  },

  table() {
    const { nStages, arrays, guess } = now;
    const nth = Array.from({ length: TOP }, (_, i) => [`guess ${i + 1}`, `share ${i + 1}`]).flat();
    return {
      columns: ["after", ...nth, "entropy (bits)", "rank of the chosen", "its share"],
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

function ask({ question, segment, newest }, { signal }) {
  return newest ? askNewest("lens", question, segment, signal) : askLatest("lens", question);
}

/**
 * The row of the core's focused column: a written token was chosen after the one before it, and at
 * a token of the prompt the next one is followed.
 */
function questionOf(context) {
  const { segment, ids, texts, position } = sequenceOf(context);
  const { token, hello } = context;
  const at = token.prompt ? position : position - 1;
  const chosen = ids[at + 1];
  if (chosen === undefined) throw new Missing("Nothing was written after this token.");
  const written = context.answer.tokens[segment.base + at + 1 - segment.prompt.length];
  const own = at + 1 < segment.prompt.length ? null : written;
  const text = texts[at + 1] || own?.candidates?.find(({ id }) => id === chosen)?.text;
  return {
    key: `${segment.id} ${at}`,
    segment,
    newest: at + 2 === ids.length,
    question: {
      kind: "logit_lens",
      ids: ids.slice(0, at + 1),
      position: at,
      chosen,
      top: TOP,
      ...asTheyRan(segment, at + 1),
    },
    name: own?.eos ? "the end of the text" : quoted(text ?? ""),
    before: tokenLabel(texts[at], "·"),
    logprob: own?.logprob ?? null,
    chosen,
    vocab: hello.model.vocab_size,
  };
}

const quoted = (text) => `“${tokenLabel(text, "part of a character")}”`;

function draw(asked, { arrays, info }) {
  const nStages = arrays.rank.shape[0];
  const guess = (stage) => {
    const shares = ofStage(arrays.probabilities, stage);
    return [...ofStage(arrays.ids, stage)].map((id, i) => ({
      id,
      text: info.pieces?.[id] ?? String(id),
      share: shares[i],
    }));
  };
  now = { ...asked, arrays, nStages, guess };
  if (rows.length !== nStages) build(nStages);
  const ranks = [...arrays.rank.values];
  setText(says, `After “${asked.before}”: ${inWords(ranks, asked.name)}`);
  legend.draw();
  const row = heightOfRow(nStages);
  const hot = hotStage();
  for (let stage = 0; stage < nStages; stage += 1) drawRow(stage, hot);
  drawRanks(canvas, { ranks, head: HEAD, row, vocab: asked.vocab, hot });
  return sourceOf(asked, arrays, info);
}

function heightOfRow(nStages) {
  const [, height] = sizeOf(plate);
  const row = clamp(Math.floor((height - HEAD - FOOT) / nStages), LEAST_ROW, MOST_ROW);
  setVars(plate, { "--ln-row": `${row}px`, "--ln-high": `${HEAD + nStages * row + FOOT}px` });
  return row;
}

function sourceOf({ logprob, name }, { probability }, info) {
  const time = info.ms === undefined ? "" : ` in ${duration(info.ms)}`;
  const asked = `Computed again from this run's tokens${time}`;
  const last = probability.values.at(-1);
  if (logprob === null) return `${asked}; before temperature and filters.`;
  const given = `${asked}; the last layer gives ${name} ${percent(last)} %`;
  return Math.abs(Math.log(last) - logprob) <= SAME_LOG
    ? `${given}, as it did in the run, before temperature and filters.`
    : `${given}, but in the run ${percent(Math.exp(logprob))} %.`;
}

// ---- the table -------------------------------------------------------------------------------

function build(nStages) {
  rows = Array.from({ length: nStages }, (_, stage) => newRow(stage));
  const head = el("tr");
  const nth = Array.from({ length: TOP }, (_, i) => `guess ${i + 1}`);
  const names = ["after", ...nth, "entropy", "chosen"];
  for (const name of names) {
    const cell = el("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const section = el("thead");
  section.append(head);
  const body = el("tbody");
  body.append(...rows.map(({ row }) => row).reverse());
  grid.replaceChildren(section, body);
}

function newRow(stage) {
  const row = el("tr");
  row.dataset.stage = stage;
  row.tabIndex = -1;
  const name = el("th", "", stageName(stage));
  name.scope = "row";
  const guesses = Array.from({ length: TOP }, () => {
    const cell = el("td", "ln-guess");
    const box = cell.appendChild(el("span"));
    return { cell, word: box.appendChild(el("b")), share: box.appendChild(el("small")) };
  });
  const spread = el("td", "ln-spread");
  const bar = spread.appendChild(el("i"));
  const bits = spread.appendChild(el("span"));
  const chance = el("td", "ln-chance");
  row.append(name, ...guesses.map(({ cell }) => cell), spread, chance);
  return { row, guesses, bar, bits, chance };
}

function drawRow(stage, hot) {
  const { row, guesses, bar, bits, chance } = rows[stage];
  const { arrays, chosen, vocab, guess } = now;
  guess(stage).forEach(({ id, text, share }, i) => {
    const at = guesses[i];
    setText(at.word, tokenLabel(text, "–"));
    setText(at.share, percent(share));
    at.cell.classList.toggle("hit", id === chosen);
    at.cell.firstChild.style.borderBottomColor = shareColour(share);
  });
  const entropy = arrays.entropy.values[stage];
  setVars(bar, { "--q": entropy / Math.log2(vocab) });
  setText(bits, entropy.toFixed(1));
  setText(chance, percent(arrays.probability.values[stage]));
  row.classList.toggle("hot", stage === hot);
  row.classList.toggle("settled", stage === whenTop([...arrays.rank.values]).settled);
  row.tabIndex = stage === (hot ?? 0) ? 0 : -1;
}

// ---- looking ---------------------------------------------------------------------------------

const stageOf = (target) => {
  const stage = target.closest("tr")?.dataset.stage;
  return stage === undefined ? null : Number(stage);
};

function hotStage() {
  const row = focusedRow();
  if (embedding !== view.row) embedding = null;
  if (embedding && !view.hoverRow) return 0;
  return row ? row.layer + 1 : null;
}

function onPoint(stage) {
  if (stage) point(focused(), { layer: stage - 1, part: 0 });
  else point(null);
}

function choose(stage) {
  if (stage === null) return;
  if (stage) pin(focused(), { layer: stage - 1, part: 0 });
  else embedding = view.row;
  changed("look");
}

/** Up and down over the layers, left and right over the tokens, as in the core. */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !now) return;
  const stage = stageOf(event.target);
  const moves = { ArrowUp: 1, ArrowDown: -1 };
  const steps = { ArrowLeft: -1, ArrowRight: 1 };
  if (event.key in steps) step(steps[event.key]);
  else if (event.key in moves) {
    const to = clamp(stage + moves[event.key], 0, now.nStages - 1);
    if (to) view.row = { layer: to - 1, part: 0 };
    else embedding = view.row;
    view.hoverRow = null;
    rows[to].row.focus();
    changed("focus");
  } else return;
  event.preventDefault();
}
