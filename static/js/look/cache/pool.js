// All blocks of the KV cache: used, cached or free, as reported by the engine. Of several engines,
// each with a cache of its own, it shows one.

import { newTerm } from "../../glossary/terms.js";
import { el, setText } from "../../ui/dom.js";
import { bytes, count, percent, plural } from "../../ui/format.js";
import { inspect, latest } from "../../net/inspect.js";
import { allFollowed } from "../../net/followed-runs.js";
import { changed, lastTurn, shownAnswer, state } from "../../state.js";
import { describeBlock, describeGroup, ownersOf, readPool, recencyOf, STATES } from "./blocks.js";
import { EngineChoice, engineInWords, engineShown, followEngines, leaveEngines } from "../shared/engines.js";
import { runNames } from "../shared/run-names.js";
import { addRow, newTable } from "../shared/table.js";
import { BlockGrid } from "./grid.js";

/**
 * What the last query was about, and its answer: `pool`, or the error `fault`.
 *
 * @typedef {{hello: ToPage.Hello, segment: Segment | null, active: Answer | null | undefined}} Watched
 */

/** @typedef {[name: string, of: (pool: Pool) => number]} Total */

/** Interval between queries during generation. */
const REST_MS = 500;

/** @type {EngineChoice} */
let choice;
/** @type {HTMLElement} */
let summary;
/** @type {BlockGrid} */
let grid;
/** @type {HTMLElement} */
let head;
/** @type {{words: HTMLElement, n: HTMLElement, size: HTMLElement}[]} */
let rows = [];
/** @type {{row: HTMLElement, words: HTMLElement, value: HTMLElement}[]} */
let figures = [];

/**
 * State of the last query: {hello, engine, segment, active, at, answered}; null after opening.
 *
 * @type {(Watched & {engine: number, at: number, answered: boolean}) | null}
 */
let asked = null;
/** The parsed answer, or the error {code, message}. @type {Pool | null} */
let pool = null;
/** @type {Problem | null} */
let fault = null;
let timer = 0;
/** Resolves the first `show`, which waits for an answer. */
let arrived = () => {};

/** View of the instrument (look/cache/cache.js). @type {CacheView} */
export const cachePool = {
  needs: "nothing",
  asks: true,

  setUp(root) {
    summary = root.appendChild(el("p", "ellipsis readout kv-summary"));
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
    /** @type {Promise<void>} */
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
    if (!pool) return { columns: COLUMNS, rows: [] };
    const { owners, found, first, used, states, groups, groupOf } = pool;
    const none = [null, null, null, null, null, null];
    const { counts, blockBytes } = pool;
    const sums = STATES.map(({ name }, i) => [null, name, ...none, counts[i], counts[i] * blockBytes]);
    const named = [
      ...TOTALS,
      ...(pool.movedTokens ? MOVED_TOTALS : []),
      ...(pool.hostBlocks ? HOST_TOTALS : []),
    ];
    const all = pool;
    const totals = named.map(([name, of]) => [null, name, ...none, of(all), null]);
    const blocks = Array.from(states, (at, i) => {
      const from = first[i] < 0 ? null : first[i] + 1;
      const group = groups[groupOf[i]] ? groupOf[i] + 1 : null;
      const about = [owners[i], ownersOf(all, i), group, from, found[i], used[i]];
      return [i, STATES[at].name, ...about, null, null];
    });
    return { columns: COLUMNS, rows: [...sums, ...totals, ...blocks] };
  },
};

/** @param {string} name */
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
const PREFIX_CACHING = "prefix caching";
const FIGURES = [PREFIX_CACHING, "copies", "evictions", "host memory", "moved"];
const HOST = 3;
const MOVED = 4;
/** @type {Total[]} */
const TOTALS = [
  ["prompt tokens", (of) => of.promptTokens],
  ["prompt tokens found", (of) => of.reusedTokens],
  ["copies", (of) => of.copies],
  ["evictions", (of) => of.evictions],
];
/** @type {Total[]} */
const MOVED_TOTALS = [["prompt tokens moved", (of) => of.movedTokens]];
/** @type {Total[]} */
const HOST_TOTALS = [
  ["in host memory", (of) => of.usedHostBlocks],
  ["copied to host memory", (of) => of.stored],
  ["copied back", (of) => of.loaded],
];

/** @type {FromPage.CacheBlocks} */
const QUESTION = { kind: "cache" };

// ---- queries ---------------------------------------------------------------------------------

function forget() {
  clearTimeout(timer);
  timer = 0;
  asked = pool = fault = null;
}

/** Query again if the cache may have changed: now, or after the interval. @param {ToPage.Hello} hello */
function follow(hello) {
  const active = state.active ?? allFollowed()[0]?.answer;
  const now = { hello, active, segment: shownAnswer(lastTurn())?.segment ?? null };
  if (asked && (!asked.answered || isStill(asked, now))) return;
  const rest = asked ? asked.at + REST_MS - performance.now() : 0;
  if (rest <= 0) ask(now);
  else if (!timer) timer = setTimeout(wake, rest);
}

/** @param {Watched} then @param {Watched} now */
const isStill = (then, now) => !then.active && !now.active && then.segment === now.segment;

/** Was nothing asked since? @param {NonNullable<typeof asked>} mine */
const isNewest = (mine) => asked === mine;

function wake() {
  timer = 0;
  changed("look");
}

/** @param {Watched} now */
async function ask(now) {
  const mine = { ...now, engine: 0, at: 0, answered: false };
  asked = mine;
  await followEngines();
  if (!isNewest(mine)) return;
  Object.assign(mine, { engine: engineShown() ?? 0, at: performance.now() });
  const settle = await latest("cache", QUESTION, (one) => inspect(one, mine.engine)).then(
    (answer) => () => {
      pool = readPool(answer, now.hello.limits, runNames(mine.engine));
      fault = null;
    },
    (error) => () => {
      fault = error;
    },
  );
  if (!isNewest(mine)) return;
  mine.answered = true;
  settle();
  arrived();
  changed("look");
}

// ---- drawing ---------------------------------------------------------------------------------

function draw() {
  if (fault) throw fault;
  if (!pool) return "";
  grid.draw(pool);
  drawSide(pool);
  return (
    `Counted by ${engineInWords()}, over the runs of all clients; those of others have no names here.`
  );
}

/** @param {number | null} block */
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

/** @param {HTMLElement} root */
function buildSide(root) {
  const side = root.appendChild(el("div", "kv-side"));
  choice = new EngineChoice(side);
  const line = side.appendChild(el("p", "kv-head"));
  line.append(newTerm("PagedAttention"), ": ", (head = el("span")));
  const table = newTable("kv-states", "Blocks by state", ["state", ["blocks", "n"], ["bytes", "n"]]);
  side.append(table);
  rows = STATES.map(({ key, name, what }) => {
    const first = el("span", "kv-state");
    const swatch = first.appendChild(el("i", "kv-swatch"));
    swatch.dataset.state = key;
    const both = first.appendChild(el("span", "kv-name"));
    both.append(el("b", "", name));
    const words = both.appendChild(el("small", "", what));
    const [, n, size] = addRow(table, [first, "", ""]).cells;
    return { words, n, size };
  });
  const list = side.appendChild(el("dl", "pairs kv-figures"));
  figures = FIGURES.map((name) => {
    const row = list.appendChild(el("div"));
    const term = row.appendChild(el("dt", "kv-name"));
    term.appendChild(el("b")).append(name === PREFIX_CACHING ? newTerm(name) : name);
    return { row, words: term.appendChild(el("small")), value: row.appendChild(el("dd")) };
  });
}

/** @param {Pool} pool */
function drawSide(pool) {
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
  figures[HOST].row.hidden = !pool.hostBlocks;
  figures[MOVED].row.hidden = !pool.movedTokens;
}

/**
 * Totals of all runs so far, in the order of `figures`, each as [value, description].
 *
 * @param {Pool} pool
 * @returns {[value: string, words: string][]}
 */
function figuresOf(pool) {
  const { promptTokens: all, reusedTokens: reused, copies, evictions, blockBytes } = pool;
  /** @type {[string, string]} */
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
