// Branches instrument: the versions of the answer as a tree with their likelihoods, and a beam
// search from any token, whose continuations can become versions.

import { el, sizeOf } from "../../ui/dom.js";
import { NOT_MEASURED } from "../../turns/answer.js";
import { replaceToken, whyNotReplaceable } from "../../chat/replace-token-run.js";
import { plural, tokenLabel } from "../../ui/format.js";
import { showVersion } from "../../chat/session.js";
import { changed, lastTurn, state } from "../../state.js";
import { numberOf, point } from "../../view.js";
import { BranchBar } from "./bar.js";
import { beamAt } from "./beam.js";
import { drawTree, evenScale, ROW, wordScale } from "./draw.js";
import { BranchRows, figureHeads } from "./rows.js";
import { likelihoodOf, treeOf } from "./tree.js";
import { Missing } from "../shared/context.js";

/** @type {BranchBar} */
let bar;
/** @type {HTMLCanvasElement} */
let canvas;
/** @type {HTMLElement} */
let plot;
/** @type {BranchRows} */
let rows;
/** Tree shown, "versions" or "beam", and the settings of the beam search. @type {TreeMode} */
let mode = "versions";
/** @type {BeamSettings} */
const search = { width: 4, depth: 8, perToken: false };
/** Number of the hovered text, or null. @type {number | null} */
let hot = null;
/**
 * Data of the last `show`: see `versionsNow` and `beamNow`; with its `tree` and `scale`.
 *
 * @type {TreeNow | null}
 */
let now = null;

/** @type {Instrument} */
export const branches = {
  needs: "run",

  setUp(root) {
    bar = new BranchBar(root, search, {
      onMode: (wanted) => {
        mode = wanted;
        again();
      },
      onSearch: again,
    });
    root.append(figureHeads(), buildBody());
  },

  show(context) {
    bar.draw(mode);
    if (mode === "versions") return take(versionsNow(context));
    return beamNow(context).then((found) => (context.signal.aborted ? "" : take(found)));
  },

  hide() {
    hot = null;
  },

  table: () => ({ columns: COLUMNS, rows: now ? rowsOf(now) : [] }),
};

/**
 * Return the data of the versions tree:
 *   texts, names   the versions as lists of tokens, and their names
 *   shown          number of the version in the core sample, or null
 *   choose         called when one is pressed; `act`: its label, "" if there is no action
 *
 * @param {RunFocus} focus
 * @returns {TreeTexts}
 */
function versionsNow({ answer, index }) {
  const turn = lastTurn();
  const versions = turn?.answers.includes(answer) ? turn.answers : [answer];
  const texts = versions.map(({ tokens }) => tokens);
  if (texts.every(({ length }) => !length)) throw new Missing(whyNothing(answer));
  const shown = versions.indexOf(answer);
  const free = versions.length > 1 && !state.active && !state.replay;
  return {
    texts,
    names: texts.map((_, i) => (versions.length > 1 ? `version ${i + 1}` : "the answer")),
    partings: versions.map(partingOf),
    shown,
    focus: index,
    each: false,
    choose: free ? showVersion : null,
    /** @param {number} i */
    act: (i) => (free && i !== shown ? "show this version" : ""),
    says: versionsSummary(texts),
    source:
      "Log-probabilities in nats, measured by the runs before temperature and filters; " +
      "those of replacement tokens were scored by the engine.",
  };
}

/** @param {Answer} answer */
function whyNothing({ running, edited }) {
  if (running) return "No token yet. Prefill is running.";
  return edited ? NOT_MEASURED : "The measurements of this answer are gone.";
}

/** Return the version and token a version branches from: {of, at}, or null. @param {Answer} answer */
function partingOf({ segments }) {
  const branch = segments.findLast((segment) => segment.branch)?.branch;
  return branch ? { of: branch.of, at: branch.at } : null;
}

/** @param {BranchToken[][]} texts */
function versionsSummary(texts) {
  if (texts.length < 2)
    return "One version so far. Replace a token to start a branch from there.";
  const { nodes } = treeOf(texts);
  const shared = nodes[0].leaves.length === texts.length ? nodes[0].to : 0;
  const what = shared ? `their first ${plural(shared, "token")}` : "no tokens";
  return `${plural(texts.length, "version")}; all share ${what}.`;
}

/** @param {RunFocus} context @returns {Promise<TreeTexts>} */
async function beamNow(context) {
  try {
    return ofBeam(context, await beamAt(context, search));
  } catch (error) {
    // Shown beside the controls, where other settings can be chosen.
    const { code, message } = /** @type {Problem} */ (error);
    if (error instanceof Missing || code) return { ...NO_TREE, says: message };
    throw error;
  }
}

/** @type {TreeTexts} */
const NO_TREE = {
  texts: [],
  names: [],
  partings: [],
  shown: null,
  focus: null,
  each: true,
  act: () => "",
  says: "",
  source: "",
};

/** @param {RunFocus} context @param {Awaited<ReturnType<typeof beamAt>>} found @returns {TreeTexts} */
function ofBeam(context, found) {
  const { answer } = context;
  const { index, own, twin } = found;
  const texts = own ? [...found.texts, own] : found.texts;
  const free = !whyNotReplaceable(answer, index);
  const written = own ? texts.length - 1 : twin;
  /** @param {number} i */
  const put = (i) => {
    mode = "versions";
    replaceToken(answer, index, texts[i].map(({ id, text }) => ({ id, text })));
    changed("look");
  };
  return {
    texts,
    names: texts.map((_, i) => (i === written ? "generated" : `${i + 1}.`)),
    partings: texts.map(() => null),
    shown: null,
    focus: null,
    each: true,
    choose: free ? put : null,
    /** @param {number} i */
    act: (i) => (free && i !== written ? "use this instead" : ""),
    says: `In place of token ${context.token ? numberOf(context.token) : ""}, ` +
      `“${tokenLabel(found.word, "end of text")}”:`,
    source: found.source,
  };
}

// ---- numbers ---------------------------------------------------------------------------------

const COLUMNS = [
  "which",
  "branches from",
  "at token",
  "with",
  "its p",
  "log p",
  "log p per token",
  "tokens",
  "text",
];

/** @param {TreeNow} now */
const rowsOf = (now) => now.texts.map((_, i) => rowOf(now, i));

/** @param {TreeNow} now @param {number} i */
function rowOf({ names, texts, partings, tree }, i) {
  const { total, mean, n } = likelihoodOf(texts[i]);
  /** @param {TreeEdge} edge */
  const isOwn = ({ leaves, parent }) => parent && leaves[0] === i && leaves.length === 1;
  const own = tree.nodes.findLast(isOwn);
  const first = own && texts[i][own.from];
  const parted = partings[i];
  return [
    names[i],
    parted ? names[parted.of] : null,
    own ? own.from + 1 : null,
    first ? first.text : null,
    first ? Math.exp(first.logprob) : null,
    total,
    mean,
    n,
    texts[i].map(({ text }) => text).join(""),
  ];
}

// ---- layout ----------------------------------------------------------------------------------

function buildBody() {
  const body = el("div", "br-body");
  plot = body.appendChild(el("div", "br-plot"));
  canvas = plot.appendChild(el("canvas"));
  canvas.setAttribute("aria-hidden", "true");
  canvas.addEventListener("pointermove", onMove);
  canvas.addEventListener("pointerleave", () => look(null));
  canvas.addEventListener("click", ({ offsetY }) => choose(leafAt(offsetY)));
  rows = new BranchRows(body, { onHover: look, onChoose: choose });
  new ResizeObserver(() => changed("look")).observe(plot);
  return body;
}

function again() {
  hot = null;
  changed("look");
}

/** Draw the tree; returns where its numbers come from. @param {TreeTexts} found */
function take(found) {
  const { texts, each } = found;
  const [room] = sizeOf(plot);
  const longest = Math.max(0, ...texts.map(({ length }) => length));
  const scale = each ? wordScale(canvas, texts, room) : evenScale(longest, room);
  now = { ...found, tree: treeOf(texts), scale };
  bar.say(now.says);
  if (room) redraw(now);
  return now.source;
}

/** @param {TreeNow} now */
function redraw(now) {
  drawTree(canvas, now.tree, { ...now, hot });
  rows.draw(now, hot);
}

// ---- pointer ---------------------------------------------------------------------------------

/** @param {number} y */
const leafAt = (y) => now?.tree.rows[Math.floor(y / ROW)] ?? null;

/** @param {number | null} leaf */
function look(leaf) {
  if (leaf === hot || !now) return;
  hot = leaf;
  if (leaf === null) point(null);
  redraw(now);
}

/** Pointing at the version in the core sample focuses its tokens. @param {PointerEvent} event */
function onMove({ offsetX, offsetY, pointerType }) {
  if (pointerType === "touch" || !now) return;
  const row = Math.floor(offsetY / ROW);
  look(leafAt(offsetY));
  const { shown } = now;
  if (shown === null) return;
  const index = now.scale.at(offsetX);
  const here = now.tree.nodes.some(
    ({ row: own, from, to, leaves }) =>
      own === row && from <= index && index < to && leaves.includes(shown),
  );
  point(here ? index : null);
}

/** @param {number | null} leaf */
function choose(leaf) {
  if (leaf === null || !now?.choose || !now.act(leaf)) return;
  now.choose(leaf);
}
