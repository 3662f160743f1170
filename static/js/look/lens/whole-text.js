// View of Lens: for every token of the text, the rank that it had after each layer, and the layer from
// which it was the top prediction.

import { spansUpTo } from "../../interventions/interventions.js";
import { changed, ready } from "../../state.js";
import { el, newButton, setAttr, setText, sizeOf } from "../../ui/dom.js";
import { plural, sentence, tokenLabel } from "../../ui/format.js";
import { pin, step } from "../../view.js";
import { askOnce } from "../shared/answer-cache.js";
import { indexAt, runKey, sequenceOf } from "../shared/context.js";
import { columnAt, drawText } from "./text-ranks.js";
import { stageName, whenTop } from "./reading.js";

/**
 * What was measured of a run: ranks after each stage of the token at position + 1.
 *
 * @typedef {{key: string, segment: Segment, ranks: Map<number, number[]>}} Measured
 */

/** @type {Measured | null} */
let measured = null;
/** The measuring that goes on, an object for each press of Measure. @type {object | null} */
let running = null;
let problem = "";
/** The text that is shown. @type {(ReturnType<typeof sequenceOf> & {answer: Answer}) | null} */
let now = null;

/** Elements. */
const at = {
  go: newButton("Measure", onGo, "text"),
  says: el("p", "ln-says"),
  plate: el("div", "ln-text"),
  canvas: el("canvas"),
  detail: el("p", "ln-detail"),
};

/** @type {InstrumentView<TokenFocus>} */
export const wholeText = {
  name: "text",
  label: "Whole text",

  setUp(root) {
    const bar = root.appendChild(el("div", "ln-text-bar"));
    at.says.setAttribute("role", "status");
    bar.append(at.go, at.says);
    at.plate.append(at.canvas);
    at.plate.tabIndex = 0;
    at.plate.setAttribute("role", "group");
    at.canvas.setAttribute("role", "img");
    root.append(at.plate, at.detail);
    at.canvas.addEventListener("click", (event) => {
      const position = columnAt(event.offsetX, nColumns());
      if (position !== null && now) pin(indexAt(now, position + 1));
    });
    at.plate.addEventListener("keydown", (event) => {
      const by = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
      if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      step(by);
    });
  },

  show(context) {
    const sequence = sequenceOf(context);
    if (measured && measured.key !== runKey(sequence.segment)) {
      measured = running = null;
      problem = "";
    }
    now = { ...sequence, answer: context.answer };
    draw(context.hello.model);
    return "Recomputed from this run’s tokens, one after the other: the lens of Token, for every position.";
  },

  hide(isClosed) {
    if (isClosed) running = null;
  },

  table() {
    const n = nStages();
    const stages = Array.from({ length: n }, (_, stage) => `rank at ${stageName(stage)}`);
    return {
      columns: ["position", "token", "id", "first on top at", "on top from", ...stages],
      rows: rows().map(({ position, ranks }) => {
        const { first, settled } = whenTop(ranks);
        const { ids, texts } = /** @type {NonNullable<typeof now>} */ (now);
        const named = [first, settled].map((stage) => (stage === null ? "" : stageName(stage)));
        const token = [position + 2, texts[position + 1], ids[position + 1]];
        return [...token, ...named, ...ranks.map((rank) => rank + 1)];
      }),
    };
  },
};

/** Tokens that something precedes. */
const nColumns = () => Math.max(0, (now?.ids.length ?? 1) - 1);

const nStages = () => [...(measured?.ranks.values() ?? [])][0]?.length ?? 0;

/** What was measured, in the order of the text. */
const rows = () =>
  [...(measured?.ranks ?? [])]
    .map(([position, ranks]) => ({ position, ranks }))
    .sort((a, b) => a.position - b.position);

async function onGo() {
  if (running || !now || !ready()) {
    running = null;
    changed("look");
    return;
  }
  const found = measured ?? { key: runKey(now.segment), segment: now.segment, ranks: new Map() };
  measured = found;
  const run = {};
  running = run;
  problem = "";
  changed("look");
  try {
    for (let position = 0; running === run && position < nColumns(); position += 1)
      if (!found.ranks.has(position)) await measure(found, now.ids, position);
  } catch (error) {
    if (running === run) problem = sentence(/** @type {Problem} */ (error).message);
  }
  if (running === run) running = null;
  changed("look");
}

/** @param {Measured} found @param {number[]} ids @param {number} position */
async function measure({ segment, ranks }, ids, position) {
  /** @type {FromPage.LogitLens} */
  const question = {
    kind: "logit_lens",
    ids: ids.slice(0, position + 1),
    position,
    chosen: ids[position + 1],
    top: 1,
    ...spansUpTo(segment, position + 1),
  };
  const { arrays } = await askOnce(question);
  ranks.set(position, [...arrays.rank.values]);
  changed("look");
}

/** @param {ToPage.PageModelInfo} model */
function draw({ vocab_size: vocab }) {
  const all = rows();
  const n = nColumns();
  setText(at.go, running ? "Stop" : all.length && all.length < n ? "Go on" : "Measure");
  at.go.disabled = !running && (!ready() || all.length >= n);
  setText(at.says, problem || summaryOf(all, n));
  const { position, segment, texts } = /** @type {NonNullable<typeof now>} */ (now);
  const prompt = segment.prompt.length - 1;
  at.canvas.hidden = !all.length;
  const picture = { rows: all, n, nStages: nStages(), vocab, prompt, hot: position - 1 };
  if (all.length) drawText(at.canvas, sizeOf(at.plate), picture);
  setAttr(at.canvas, "aria-label", `Ranks of every token after each layer. ${at.says.textContent}`);
  const ranks = measured?.ranks.get(position - 1);
  setText(at.detail, ranks ? `${tokenLabel(texts[position], "·")}: ${inShort(ranks)}` : "");
}

/** @param {number[]} ranks */
function inShort(ranks) {
  const { first, settled } = whenTop(ranks);
  if (first === null) return "never the top prediction";
  const begin = `first on top at ${stageName(first)}`;
  return settled === null ? `${begin}, but not at the end` : `${begin}, on top from ${stageName(settled)} on`;
}

/** @param {{ranks: number[]}[]} all @param {number} n */
function summaryOf(all, n) {
  if (!all.length) return `Measure ${plural(n, "token")}: from which layer on was each the top prediction?`;
  const settled = all.flatMap(({ ranks }) => whenTop(ranks).settled ?? []).sort((a, b) => a - b);
  const done = all.length < n ? `${all.length} of ${plural(n, "token")}. ` : "";
  if (!settled.length) return `${done}None is the top prediction at the end.`;
  const middle = stageName(settled[(settled.length - 1) >> 1]);
  const half = `half of these from ${middle} on or earlier`;
  return `${done}${settled.length} of ${all.length} are the top prediction at the end, ${half}.`;
}
