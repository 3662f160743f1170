// @ts-nocheck
// All blocks of the KV cache: used, cached or free, as reported by the engine. Of several engines,
// each with a cache of its own, it shows one.

import { el, setText } from "../../ui/dom.js";
import { bytes, count, percent, plural } from "../../ui/format.js";
import { inspect, latest } from "../../net/inspect.js";
import { allFollowed } from "../../net/followed-runs.js";
import { changed, lastTurn, shownAnswer, state } from "../../state.js";
import { describeBlock, describeGroup, ownersOf, readPool, recencyOf, STATES } from "./blocks.js";
import { EngineChoice, engineInWords, engineShown, followEngines, leaveEngines } from "../shared/engines.js";
import { runNames } from "../shared/run-names.js";
import { BlockGrid } from "./grid.js";

/** Interval between queries during generation. */
const REST_MS = 500;

let choice = null;
let summary = null;
let grid = null;
let head = null;
let rows = [];
let figures = [];

/** State of the last query: {hello, engine, segment, active, at, answered}; null after opening. */
let asked = null;
/** The parsed answer, or the error {code, message}. */
let pool = null;
let fault = null;
let timer = 0;
/** Resolves the first `show`, which waits for an answer. */
let arrived = () => {};

/** View of the instrument (look/cache/cache.js). */
export const cachePool = {
  needs: "nothing",
  asks: true,

  setUp(root) {
    summary = root.appendChild(el("p", "kv-summary"));
    grid = new BlockGrid(root, drawSummary);
    buildSide(root);
  },

  show({ hello }) {
    followEngines();
    choice.draw();
    if (asked && (asked.hello !== hello || (asked.answered && asked.engine !== engineShown())))
      forget();
    follow(hello);
    if (pool || fault) return draw();
    const first = new Promise((resolve) => {
      arrived = resolve;
    });
    return first.then(() => (asked ? draw() : ""));
  },

  hide() {
    forget();
    leaveEngines();
    arrived();
  },

  table() {
    const { owners, found, first, used, states, groups, groupOf } = pool;
    const none = [null, null, null, null, null, null];
    const sums = STATES.map(({ name }, i) => {
      return [null, name, ...none, pool.counts[i], pool.counts[i] * pool.blockBytes];
    });
    const named = [
      ...TOTALS,
      ...(pool.movedTokens ? MOVED_TOTALS : []),
      ...(pool.hostBlocks ? HOST_TOTALS : []),
    ];
    const totals = named.map(([name, of]) => [null, name, ...none, of(pool), null]);
    const blocks = Array.from(states, (at, i) => {
      const from = first[i] < 0 ? null : first[i] + 1;
      const group = groups[groupOf[i]] ? groupOf[i] + 1 : null;
      const about = [owners[i], ownersOf(pool, i), group, from, found[i], used[i]];
      return [i, STATES[at].name, ...about, null, null];
    });
    return { columns: COLUMNS, rows: [...sums, ...totals, ...blocks] };
  },
};

const whole = (name) => ({ name, format: count });
const COLUMNS = [
  whole("block"),
  "state",
  whole("runs"),
  "owners",
  whole("group of layers"),
  whole("from token"),
  whole("tokens found"),
  whole("used"),
  whole("count"),
  whole("bytes"),
];
const TOTALS = [
  ["prompt tokens", (of) => of.promptTokens],
  ["prompt tokens found", (of) => of.reusedTokens],
  ["copies", (of) => of.copies],
  ["evictions", (of) => of.evictions],
];
const MOVED_TOTALS = [["prompt tokens moved", (of) => of.movedTokens]];
const HOST_TOTALS = [
  ["in host memory", (of) => of.usedHostBlocks],
  ["copied to host memory", (of) => of.stored],
  ["copied back", (of) => of.loaded],
];

// ---- queries ---------------------------------------------------------------------------------

function forget() {
  clearTimeout(timer);
  timer = 0;
  asked = pool = fault = null;
}

/** Query again if the cache may have changed: now, or after the interval. */
function follow(hello) {
  const active = state.active ?? allFollowed()[0]?.answer;
  const now = { hello, active, segment: shownAnswer(lastTurn())?.segment ?? null };
  if (asked && (!asked.answered || isStill(asked, now))) return;
  const rest = asked ? asked.at + REST_MS - performance.now() : 0;
  if (rest <= 0) ask(now);
  else if (!timer) timer = setTimeout(wake, rest);
}

const isStill = (then, now) => !then.active && !now.active && then.segment === now.segment;

function wake() {
  timer = 0;
  changed("look");
}

async function ask(now) {
  const mine = { ...now, engine: null, at: 0, answered: false };
  asked = mine;
  await followEngines();
  if (asked !== mine) return;
  Object.assign(mine, { engine: engineShown(), at: performance.now() });
  const settle = await latest("cache", { kind: "cache" }, (one) => inspect(one, mine.engine)).then(
    (answer) => () => {
      pool = readPool(answer, now.hello.limits, runNames(mine.engine));
      fault = null;
    },
    (error) => () => {
      fault = error;
    },
  );
  if (asked !== mine) return;
  mine.answered = true;
  settle();
  arrived();
  changed("look");
}

// ---- drawing ---------------------------------------------------------------------------------

function draw() {
  if (fault) throw fault;
  grid.draw(pool);
  drawSide();
  return (
    `Counted by ${engineInWords()}, over the runs of all clients; those of others have no names here.`
  );
}

function drawSummary(block) {
  if (!pool) return;
  if (block !== null) {
    const name = el("b", "", `block ${count(block)}`);
    const recency = el("small", "", recencyOf(pool, block));
    summary.replaceChildren(name, ` ${describeBlock(pool, block)}`, recency);
    return;
  }
  const owners = pool.byRun.map(([name, n]) => `${name} ${count(n)}`).join(", ");
  const who = owners ? `: ${owners}` : "";
  const inUse = `${count(pool.nRead)} of ${plural(pool.n, "block")} in use${who}.`;
  const layers = pool.byWindow.map((its) => `${count(its.used)} for ${describeGroup(its)}`);
  summary.replaceChildren(inUse, ...(layers.length ? [el("small", "", layers.join(", "))] : []));
}

function buildSide(root) {
  const side = root.appendChild(el("div", "kv-side"));
  choice = new EngineChoice(side);
  head = side.appendChild(el("p", "kv-head"));
  const table = side.appendChild(el("table", "kv-states"));
  table.append(el("caption", "vh", "Blocks by state"));
  const names = table.createTHead().insertRow();
  for (const name of ["state", "blocks", "bytes"]) {
    const cell = names.appendChild(el("th", name === "state" ? "" : "n", name));
    cell.scope = "col";
  }
  const body = table.createTBody();
  rows = STATES.map(({ key, name, what }) => {
    const row = body.insertRow();
    const first = row.appendChild(el("th"));
    first.scope = "row";
    const swatch = first.appendChild(el("i", "kv-swatch"));
    swatch.dataset.state = key;
    const words = first.appendChild(el("span", "kv-name"));
    words.append(el("b", "", name), el("small", "", what));
    return { words: words.lastChild, n: cell(row), size: cell(row) };
  });
  const list = side.appendChild(el("dl", "kv-figures"));
  figures = ["hit rate", "copies", "evictions", "host memory", "moved"].map((name) => {
    const row = list.appendChild(el("div"));
    const term = row.appendChild(el("dt", "kv-name"));
    term.append(el("b", "", name), el("small"));
    return { row, words: term.lastChild, value: row.appendChild(el("dd")) };
  });
}

function cell(row) {
  const made = row.insertCell();
  made.className = "n";
  return made;
}

function drawSide() {
  const { blockTokens, blockBytes, n, counts } = pool;
  const size = `${plural(blockTokens, "token")}, ${bytes(blockBytes)} each`;
  const each = `${plural(n, "block")} of ${size}`;
  setText(head, `${each}: ${bytes(n * blockBytes)}.`);
  rows.forEach(({ n: number, size }, i) => {
    setText(number, count(counts[i]));
    setText(size, bytes(counts[i] * blockBytes));
  });
  const shared = STATES.findIndex(({ key }) => key === "shared");
  const saves = pool.nSaved ? `one copy saves ${plural(pool.nSaved, "block")}` : null;
  setText(rows[shared].words, saves ?? STATES[shared].what);
  figuresOf(pool).forEach(([value, words], i) => {
    setText(figures[i].value, value);
    setText(figures[i].words, words);
  });
  figures.at(-2).row.hidden = !pool.hostBlocks;
  figures.at(-1).row.hidden = !pool.movedTokens;
}

/** Totals of all runs so far, in the order of `figures`, each as [value, description]. */
function figuresOf(pool) {
  const { promptTokens: all, reusedTokens: reused, copies, evictions, blockBytes } = pool;
  const hits = all
    ? [
        `${percent(reused / all)} %`,
        `${count(reused)} of ${plural(all, "prompt token")} reused, not computed`,
      ]
    : ["–", "no prompt so far"];
  return [
    hits,
    [count(copies), "on write: texts diverged within a block"],
    [count(evictions), "cached blocks that were reallocated"],
    [
      `${count(pool.usedHostBlocks)} of ${plural(pool.hostBlocks, "block")}`,
      `${bytes(pool.stored * blockBytes)} copied there, ${bytes(pool.loaded * blockBytes)} back`,
    ],
    [
      plural(pool.movedTokens, "token"),
      "of prompts, their keys rotated to new positions: approximate",
    ],
  ];
}
