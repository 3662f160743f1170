// The versions of the answer as the tree they are, with what the model makes of each; and, from any
// place, the likeliest ways to go on, each of which can become a version.

import { clamp, el, setText, sizeOf } from "../dom.js";
import { force, whyNotHere } from "../forcing.js";
import { count, plural, tokenLabel } from "../format.js";
import { showVersion } from "../session.js";
import { changed, lastTurn, state } from "../state.js";
import { numberOf, point, step, view } from "../view.js";
import { beamAt } from "./branchbeam.js";
import { drawTree, evenScale, ROW, wordScale } from "./branchdraw.js";
import { likelihoodOf, treeOf } from "./branchtree.js";
import { Missing } from "./context.js";
import { Roving } from "./roving.js";

const BOUNDS = { width: [2, 8], depth: [4, 32] };

let says = null;
let canvas = null;
let plot = null;
let list = null;
let controls = null;
/** Which tree: "versions" or "beam"; and how the beam searches. */
let mode = "versions";
const search = { width: 4, depth: 8, perToken: false };
/** Number of the text under the hand, or null. */
let hot = null;
/** What the last `show` drew: see `versionsNow` and `beamNow`; and its `tree` and `scale`. */
let now = null;

export const branches = {
  name: "branches",
  tab: "Branches",
  title: "Branches",
  what: "What the versions of the answer share, how likely each is, and the likeliest ways to go on.",
  needs: "run",

  setUp(root) {
    root.append(buildBar(), buildHead(), buildBody());
  },

  async show(context) {
    drawControls();
    const found = mode === "beam" ? await beamNow(context) : versionsNow(context);
    if (context.signal.aborted) return "";
    now = found;
    now.tree = treeOf(now.texts);
    draw();
    return now.source;
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
  const { answer } = context;
  const found = await beamAt(context, search);
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
    written,
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

function buildBar() {
  const bar = el("div", "br-bar");
  const modes = bar.appendChild(el("fieldset", "seg"));
  modes.append(el("legend", "vh", "Which tree"));
  for (const [value, name] of [
    ["versions", "Versions"],
    ["beam", "Likeliest from here"],
  ]) {
    const choice = modes.appendChild(el("label", "", name));
    const input = Object.assign(el("input"), { type: "radio", name: "look-branches", value });
    choice.prepend(input);
  }
  modes.addEventListener("change", ({ target }) => again(() => (mode = target.value)));
  controls = bar.appendChild(el("div", "br-search"));
  controls.append(
    number("width", "continuations"),
    number("depth", "tokens each"),
    check("perToken", "ranked per token"),
  );
  says = bar.appendChild(el("p", "br-says"));
  return bar;
}

function again(change) {
  change();
  hot = null;
  changed("look");
}

function number(name, words) {
  const box = el("label", "", words);
  const [min, max] = BOUNDS[name];
  const input = Object.assign(el("input"), { type: "number", min, max, step: 1, value: search[name] });
  input.addEventListener("change", () => {
    const wanted = clamp(Math.round(Number(input.value)) || search[name], min, max);
    input.value = wanted;
    again(() => (search[name] = wanted));
  });
  box.prepend(input);
  return box;
}

function check(name, words) {
  const box = el("label", "", words);
  const input = Object.assign(el("input"), { type: "checkbox", checked: search[name] });
  input.addEventListener("change", () => again(() => (search[name] = input.checked)));
  box.prepend(input);
  return box;
}

function buildHead() {
  const head = el("div", "br-head");
  for (const [words, title] of [
    ["log p", "Sum of the natural logarithms of the tokens’ probabilities"],
    ["per token", "The same, over the number of tokens"],
    ["tokens", ""],
  ])
    head.appendChild(el("span", "", words)).title = title;
  return head;
}

function buildBody() {
  const body = el("div", "br-body");
  plot = body.appendChild(el("div", "br-plot"));
  canvas = plot.appendChild(el("canvas"));
  canvas.setAttribute("aria-hidden", "true");
  canvas.addEventListener("pointermove", onMove);
  canvas.addEventListener("pointerleave", () => look(null));
  canvas.addEventListener("click", ({ offsetY }) => choose(leafAt(offsetY)));
  list = body.appendChild(el("ol", "br-rows"));
  list.addEventListener("click", ({ target }) => choose(leafOf(target)));
  list.addEventListener("pointerover", ({ target }) => look(leafOf(target)));
  list.addEventListener("pointerleave", () => look(null));
  list.addEventListener("focusin", ({ target }) => look(leafOf(target)));
  list.addEventListener("focusout", () => look(null));
  list.addEventListener("keydown", onKey);
  const keys = { after: "ArrowDown", before: "ArrowUp" };
  list.roving = new Roving(list, keys, () => [...list.querySelectorAll("button")].map((node) => [node]));
  new ResizeObserver(() => changed("look")).observe(plot);
  return body;
}

// ---- drawing ---------------------------------------------------------------------------------

function drawControls() {
  for (const input of document.getElementsByName("look-branches")) input.checked = input.value === mode;
  controls.hidden = mode !== "beam";
}

function draw() {
  const { texts, tree, says: words } = now;
  setText(says, words);
  const [room] = sizeOf(plot);
  if (!room) return;
  const longest = Math.max(...texts.map(({ length }) => length));
  now.scale = now.each ? wordScale(canvas, texts, room) : evenScale(longest, room);
  drawTree(canvas, tree, { ...now, hot });
  drawRows();
}

function drawRows() {
  const { rows } = now.tree;
  if (list.children.length !== rows.length) {
    list.replaceChildren(...rows.map(newRow));
    list.roving.reset();
  }
  rows.forEach((leaf, row) => drawRow(list.children[row], leaf));
}

function newRow() {
  const row = el("li");
  const button = row.appendChild(el("button"));
  button.type = "button";
  button.append(el("span", "n"), el("span", "n"), el("span", "n"), el("span", "br-act"));
  return row;
}

function drawRow(row, leaf) {
  const { names, texts, shown, act } = now;
  const { total, mean, n } = likelihoodOf(texts[leaf]);
  const [button] = row.children;
  const figures = [written(total, 2), written(mean, 3), count(n)];
  figures.forEach((text, i) => setText(button.children[i], text));
  setText(button.children[3], act(leaf));
  row.dataset.leaf = leaf;
  row.classList.toggle("on", leaf === shown);
  row.classList.toggle("hot", leaf === hot);
  button.setAttribute("aria-disabled", String(!act(leaf)));
  if (leaf === shown) button.setAttribute("aria-current", "true");
  else button.removeAttribute("aria-current");
  const text = texts[leaf].map((token) => token.text).join("").trim();
  const does = act(leaf) ? `, ${act(leaf)}` : "";
  const name = `${names[leaf]}: log p ${figures[0]}, ${figures[1]} per token, ${plural(n, "token")}${does}. ${text}`;
  button.setAttribute("aria-label", name);
}

/** A number with a real minus sign; – for one that is not known. */
const written = (value, digits) => (value === null ? "–" : value.toFixed(digits).replace("-", "−"));

// ---- hands -----------------------------------------------------------------------------------

const leafOf = (target) => {
  const leaf = target.closest?.("li")?.dataset.leaf;
  return leaf === undefined ? null : Number(leaf);
};
const leafAt = (y) => now?.tree.rows[Math.floor(y / ROW)] ?? null;

function look(leaf) {
  if (leaf === hot || !now) return;
  hot = leaf;
  if (leaf === null) point(null);
  drawTree(canvas, now.tree, { ...now, hot });
  drawRows();
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

/** Left and right walk along the tokens that the core shows. */
function onKey(event) {
  const d = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!d || event.ctrlKey || event.metaKey || event.altKey || !view.answer) return;
  event.preventDefault();
  step(d);
}
