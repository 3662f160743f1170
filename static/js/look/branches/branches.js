// The versions of the answer as the tree they are, with what the model makes of each; and, from any
// place, the likeliest ways to go on, each of which can become a version.

import { el, sizeOf } from "../dom.js";
import { force, whyNotHere } from "../forcing.js";
import { plural, tokenLabel } from "../format.js";
import { showVersion } from "../session.js";
import { changed, lastTurn, state } from "../state.js";
import { numberOf, point } from "../view.js";
import { BranchBar } from "./branchbar.js";
import { beamAt } from "./branchbeam.js";
import { drawTree, evenScale, ROW, wordScale } from "./branchdraw.js";
import { BranchRows, figureHeads } from "./branchrows.js";
import { likelihoodOf, treeOf } from "./branchtree.js";
import { Missing } from "./context.js";

let bar = null;
let canvas = null;
let plot = null;
let rows = null;
/** Which tree: "versions" or "beam"; and how the beam searches. */
let mode = "versions";
const search = { width: 4, depth: 8, perToken: false };
/** Number of the text under the hand, or null. */
let hot = null;
/** What the last `show` drew: see `versionsNow` and `beamNow`; and its `tree` and `scale`. */
let now = null;

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

  table: () => ({ columns: COLUMNS, rows: now.texts.map((_, i) => rowOf(i)) }),
};

/**
 * texts, names   the versions: lists of tokens, and what they are called
 * shown          number of the one that the core shows, or null
 * choose         what a press on one does; `act`: the same in words, "" when it does nothing
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
    act: (i) => (free && i !== shown ? "show this version" : ""),
    says: saysOfVersions(texts),
    source:
      "Log-probabilities in nats, as the runs measured them, before temperature and filters; " +
      "of tokens that were put in, as the engine judged them.",
  };
}

const whyNothing = ({ running }) =>
  running ? "No token yet. The prompt is being read." : "The measurements of this answer are gone.";

/** Where a version parted from which other one: {of, at}, or null. */
function partingOf({ segments }) {
  const branch = segments.findLast((segment) => segment.branch)?.branch;
  return branch ? { of: branch.of, at: branch.at } : null;
}

function saysOfVersions(texts) {
  if (texts.length < 2)
    return "One version so far. Write another token in the place of one, and the text goes on from there as another branch.";
  const { nodes } = treeOf(texts);
  const shared = nodes[0].leaves.length === texts.length ? nodes[0].to : 0;
  const what = shared ? `their first ${plural(shared, "token")}` : "no beginning";
  return `${plural(texts.length, "version")}, which all share ${what}.`;
}

async function beamNow(context) {
  try {
    return ofBeam(context, await beamAt(context, search));
  } catch (error) {
    // Said beside the controls, from which another tree can be had.
    if (error instanceof Missing || error.code) return { ...NOTHING, says: error.message };
    throw error;
  }
}

const NOTHING = { texts: [], names: [], partings: [], shown: null, focus: null, each: true, act: () => "", source: "" };

function ofBeam(context, found) {
  const { answer } = context;
  const { index, own, twin } = found;
  const texts = own ? [...found.texts, own] : found.texts;
  const free = !whyNotHere(answer, index);
  const written = own ? texts.length - 1 : twin;
  const put = (i) => {
    mode = "versions";
    force(answer, index, texts[i].map(({ id, text }) => ({ id, text })));
    changed("look");
  };
  return {
    texts,
    names: texts.map((_, i) => (i === written ? "written" : `${i + 1}.`)),
    partings: texts.map(() => null),
    shown: null,
    focus: null,
    each: true,
    choose: free ? put : null,
    act: (i) => (free && i !== written ? "write this instead" : ""),
    says: `In the place of token ${numberOf(context.token)}, “${tokenLabel(found.word, "end of text")}”:`,
    source: found.source,
  };
}

// ---- numbers ---------------------------------------------------------------------------------

const COLUMNS = ["which", "parts from", "at token", "with", "its p", "log p", "log p per token", "tokens", "text"];

function rowOf(i) {
  const { names, texts, partings, tree } = now;
  const { total, mean, n } = likelihoodOf(texts[i]);
  const own = tree.nodes.findLast(({ leaves, parent }) => parent && leaves[0] === i && leaves.length === 1);
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

// ---- its parts -------------------------------------------------------------------------------

function buildBody() {
  const body = el("div", "br-body");
  plot = body.appendChild(el("div", "br-plot"));
  canvas = plot.appendChild(el("canvas"));
  canvas.setAttribute("aria-hidden", "true");
  canvas.addEventListener("pointermove", onMove);
  canvas.addEventListener("pointerleave", () => look(null));
  canvas.addEventListener("click", ({ offsetY }) => choose(leafAt(offsetY)));
  rows = new BranchRows(body, { onLook: look, onChoose: choose });
  new ResizeObserver(() => changed("look")).observe(plot);
  return body;
}

function again() {
  hot = null;
  changed("look");
}

/** Draw what was found; gives where its numbers come from. */
function take(found) {
  const { texts, each } = found;
  now = { ...found, tree: treeOf(texts) };
  bar.say(now.says);
  const [room] = sizeOf(plot);
  if (!room) return now.source;
  const longest = Math.max(0, ...texts.map(({ length }) => length));
  now.scale = each ? wordScale(canvas, texts, room) : evenScale(longest, room);
  redraw();
  return now.source;
}

function redraw() {
  drawTree(canvas, now.tree, { ...now, hot });
  rows.draw(now, hot);
}

// ---- hands -----------------------------------------------------------------------------------

const leafAt = (y) => now?.tree.rows[Math.floor(y / ROW)] ?? null;

function look(leaf) {
  if (leaf === hot || !now) return;
  hot = leaf;
  if (leaf === null) point(null);
  redraw();
}

/** Over what the core shows, its tokens can be pointed at. */
function onMove({ offsetX, offsetY, pointerType }) {
  if (pointerType === "touch" || !now) return;
  const row = Math.floor(offsetY / ROW);
  look(leafAt(offsetY));
  if (now.shown === null) return;
  const index = now.scale.at(offsetX);
  const here = now.tree.nodes.some(
    (node) => node.row === row && node.from <= index && index < node.to && node.leaves.includes(now.shown),
  );
  point(here ? index : null);
}

function choose(leaf) {
  if (leaf === null || !now?.choose || !now.act(leaf)) return;
  now.choose(leaf);
}
