// The panel of one token: its candidates before and after the filters, and the draw.

import { byId, clamp, el, setAttr, setText, setVars } from "../ui/dom.js";
import { maskedCandidates } from "./masked-candidates.js";
import { previewOf } from "../chat/pace.js";
import { whyNotReplaceable } from "../chat/replace-token-run.js";
import { count, ordinal, percent, probability, tokenLabel } from "../ui/format.js";
import { FILTERS, PENALTIES, SETTING_BY_NAME, isGreedy } from "../settings/sampling-settings.js";
import { drawReplaceToken, setUpReplaceToken } from "../chat/replace-token.js";
import { lackOf } from "../ui/lacks.js";
import { on, state } from "../state.js";
import { focused, focusedToken, numberOf, promptLength, step, view, written } from "../view.js";

/**
 * A row: a candidate, or the drawn token where it is not among them.
 *
 * @typedef {Omit<ToPage.CandidateText, "before"> & {before: number | null, masked?: boolean}} Candidate
 */

/**
 * What the next token will be drawn from, in the place of a token.
 *
 * @typedef {ToPage.Preview & {id: null, text: string, segment: Segment, place: number, number: number,
 *   next: number, draw?: undefined, draft?: undefined, eos?: undefined, probability?: undefined,
 *   put?: undefined, prompt?: undefined, watermark?: undefined}} NextToken
 * @typedef {NextToken | Token & {next?: undefined}} Drawn
 */

/** @typedef {[label: string, removed: number]} Cut */
/** @typedef {ReturnType<typeof emptyLine>} Line */

const list = byId("cands");
const MAX_ROWS = 20;
const MIN_ROWS = 6;
const ROW = 20;
/** Share from which a token that a grammar masked is shown. */
const MIN_MASKED = 0.0005;
const FIGURE_SPACE = "\u2007"; // as wide as a digit
let nRows = 12;
/** Candidates of the rows, and whether one of them can replace the token. @type {Candidate[]} */
let rows = [];
let free = false;
/** Elements of the rows. @type {Line[]} */
const lines = [];

export function setUpCandidates() {
  byId("tok-prev").addEventListener("click", () => step(-1));
  byId("tok-next").addEventListener("click", () => step(1));
  setUpReplaceToken(list, (row) => rows[lines.findIndex((line) => line.row === row)]);
  on("focus tokens turns connection hello size", draw);
  new ResizeObserver(() => {
    const row = parseFloat(getComputedStyle(list).gridAutoRows) || ROW;
    nRows = clamp(Math.floor(list.clientHeight / row), MIN_ROWS, MAX_ROWS);
    draw();
  }).observe(list);
}

/**
 * What the next token will be drawn from, in the place of a token: while the run is paused and the
 * newest token has the focus.
 *
 * @returns {NextToken | null}
 */
function nextToken() {
  const { answer } = view;
  const preview = view.pinned === null && view.hover === null ? previewOf(answer) : null;
  const segment = answer?.segment;
  if (!segment || !preview) return null;
  const place = segment.nTokens;
  const number = (segment.params?.first_index ?? 0) + preview.index;
  return { ...preview, id: null, text: "", segment, place, number, next: answer.tokens.length + 1 };
}

function draw() {
  const next = nextToken();
  const token = next ? null : focusedToken();
  byId("cands").toggleAttribute("data-next", next !== null);
  setText(byId("tok-no"), next ? count(next.next) : token ? numberOf(token) : "");
  setText(byId("tok-word"), token ? wordOf(token) : "Next token");
  setText(byId("tok-sub"), next ? "not drawn yet" : token ? howChosen(token) : "");
  byId("tok-prev").disabled = !(next ?? token) || focused() === -promptLength();
  byId("tok-next").disabled = !(next ?? token) || focused() === written() - 1;
  const chosen = !token || token.prompt !== undefined ? null : token;
  document.body.toggleAttribute("data-chosen", !!(next ?? chosen));
  free = chosen !== null && !whyNotReplaceable(view.answer, focused());
  drawList(next ?? chosen);
  drawReplaceToken(free, chosen);
  drawDraw(next ?? chosen);
}

/** @param {Token | PromptToken} token */
function wordOf(token) {
  if (token.eos) return "end of text";
  const own = token.candidates?.find(({ id }) => id === token.id)?.text;
  return tokenLabel(token.text || own || "", "part of a character");
}

/** @param {Token | PromptToken} token */
function howChosen(token) {
  if (token.prompt !== undefined) {
    const { moved, reused, prompt } = token;
    if (moved) return `given, moved here from position ${count(moved.source + prompt - moved.first)}`;
    return reused ? "given, found in cache" : "given, not chosen";
  }
  if (token.rank === null && !Number.isFinite(token.logprob))
    return state.hello?.upstream ? "no probability was reported" : "measurements are no longer kept";
  const p = `p ${probability(Math.exp(token.logprob))}`;
  if (token.draft && !token.draft.accepted) return `${p} · not “${rejected(token.draft)}”`;
  if (token.rank === null) return p;
  return `${p} · ${ordinal(token.rank)} ${token.draft ? "· drafted" : "choice"}`;
}

/** Return the text of a rejected draft and of those that fell with it. @param {ToPage.Draft} draft */
const rejected = ({ text, discarded = [] }) =>
  tokenLabel(text + discarded.map((other) => other.text).join(""), "part of a character");

/**
 * Return the candidates to show: the most likely ones, and always the drawn one.
 *
 * @param {Drawn} token
 * @returns {Candidate[]}
 */
function rowsOf(token) {
  /** @type {Candidate[]} */
  const most = token.candidates.slice(0, nRows);
  if (token.id !== null && !most.some(({ id }) => id === token.id)) {
    const chosen = token.candidates.find(({ id }) => id === token.id) ?? {
      id: token.id,
      text: token.text,
      before: null,
      after: token.probability,
      cut: "",
    };
    most.splice(nRows - 1, 1, chosen);
  }
  return token.id === null ? most : withMasked(most, token);
}

/**
 * Put the most likely tokens that a grammar masked before the rows. Their shares are those of the whole
 * vocabulary, and the others' of the allowed tokens.
 *
 * @param {Candidate[]} rows
 * @param {Token} token
 */
function withMasked(rows, token) {
  /** @type {Candidate[]} */
  const masked = maskedCandidates(token).filter(({ before }) => before >= MIN_MASKED);
  const shown = rows.slice(0, Math.max(1, nRows - masked.length));
  const drawn = rows.find(({ id }) => id === token.id);
  if (drawn && !shown.includes(drawn)) shown.splice(shown.length - 1, 1, drawn);
  return [...masked, ...shown];
}

/** @param {Drawn | null} token */
function drawList(token) {
  rows = token ? rowsOf(token) : [];
  while (lines.length < nRows) lines.push(emptyLine());
  for (const { row } of lines.splice(nRows)) row.remove();
  const most = Math.max(1e-9, ...rows.map(({ before, after }) => Math.max(before ?? 0, after ?? 0)));
  lines.forEach((line, i) => drawLine(line, rows[i], token, most));
}

function emptyLine() {
  const row = el("li");
  const bar = el("span", "b");
  const before = el("i", "b-out");
  const after = el("i", "b-in");
  bar.append(before, after);
  const word = el("button", "w");
  Object.assign(word, { type: "button", tabIndex: -1 });
  const number = el("span", "n");
  const note = el("span", "c");
  row.append(word, bar, number, note);
  list.append(row);
  return { row, word, bar, before, after, number, note };
}

/**
 * @param {Line} line
 * @param {Candidate | undefined} candidate
 * @param {Drawn | null} token
 * @param {number} most
 */
function drawLine({ row, word, bar, before, after, number, note }, candidate, token, most) {
  const drawn = !!token && candidate?.id === token.id;
  const cut = SETTING_BY_NAME[candidate?.cut ?? ""]?.label ?? "";
  const again = !!candidate && !!token && !cut && penalised(candidate, token);
  row.classList.toggle("pick-row", drawn);
  const masked = !!candidate?.masked;
  row.classList.toggle("cut", cut !== "" || masked);
  setAttr(row, "title", masked ? `The answer’s format does not allow this token here. Without the format, its probability would be ${percent(candidate?.before ?? 0)} %.` : null);
  row.classList.toggle("again", again);
  bar.hidden = !candidate && focusedToken() !== null;
  const text = drawn && token.eos ? "end of text" : candidate?.text;
  setText(word, candidate ? tokenLabel(text ?? "", "–") : "");
  const share = candidate?.after || candidate?.before || 0;
  setText(number, candidate && !Number.isNaN(share) ? inColumn(percent(share)) : "");
  const own = candidate && token ? noteOf(candidate, token) : "";
  const never = token?.n_kept === 1 && candidate?.after === 0 && !own; // its share is that before
  setText(note, masked ? "masked" : own || cut || (again ? "penalty" : never ? "greedy" : ""));
  word.disabled = !candidate || !free || masked;
  setAttr(word, "aria-hidden", String(!candidate)); // an empty row is not a button yet
  const act = word.disabled ? null : drawn ? "write on from here" : "write this instead";
  setAttr(row, "data-act", act);
  setAttr(word, "aria-label", act && `${word.textContent}: ${act}`);
  setVars(before, { "--p": (candidate?.before ?? 0) / most });
  setVars(after, { "--q": (candidate?.after ?? 0) / most });
  before.hidden = after.hidden = !candidate;
}

/**
 * Pad a share to the width of "100.0", so that numbers do not move sideways from token to token.
 * Browsers count that as layout shift.
 *
 * @param {string} share
 */
const inColumn = (share) => share.padStart(5, FIGURE_SPACE);

/**
 * Note beside a candidate. Where a person put a token, the drawn one is another candidate.
 *
 * @param {Candidate} candidate
 * @param {Drawn} token
 */
function noteOf({ id }, token) {
  const { branch } = token.segment;
  const was = token.put && branch?.at === focused() ? branch.was.id : null;
  if (id === token.id) return token.put ? "forced" : "drawn";
  return id === was ? "drawn" : "";
}

/**
 * Did a penalty act on this candidate? That for repetition acts on every token before it, the others
 * on those that were written: a run that continues another has some of them in its prompt.
 *
 * @param {Candidate} candidate
 * @param {Drawn} token
 */
function penalised({ id }, token) {
  const { segment, place, number = 0 } = token;
  if (!view.answer) return false;
  const { tokens } = view.answer;
  const settings = view.answer.settingsAt(token);
  const acting = PENALTIES.filter(({ name, neutral }) => settings[name] !== neutral);
  if (!acting.length) return false;
  const repeats = acting.some(({ name }) => name === "repetition_penalty");
  if (repeats && segment.promptIds.has(id)) return true;
  for (let at = place - 1; at >= (repeats ? 0 : place - number); at -= 1) {
    const before = at < 0 ? segment.prompt.at(at) : tokens[segment.base + at];
    if (before?.id === id) return true;
  }
  return false;
}

/**
 * Candidates in the order of the draw with their shares of the whole mass. A watermark changes both.
 *
 * @param {Drawn} token
 * @param {number} kept
 */
function drawnFrom({ candidates, watermark }, kept) {
  const shares = candidates
    .filter(({ cut }) => !cut)
    .map(({ id, before, after }) => ({ id, share: watermark ? (after ?? 0) * kept : before }));
  const listed = shares.filter(({ share }) => share >= 0.0005);
  return watermark ? listed.toSorted((a, b) => b.share - a.share) : listed;
}

/**
 * Draw the strip: kept shares in falling order, removed mass hatched, the draw as a tick.
 *
 * @param {Drawn | null} token
 */
function drawDraw(token) {
  const box = byId("draw");
  if (!token?.mass) return box.replaceChildren(el("p", "lack", token ? lackOf("draw") : ""));
  const [kept, ...removed] = token.mass;
  /** @type {Cut[]} */
  const cuts = FILTERS.map(({ label }, i) => [label, removed[i] ?? 0]);
  cuts.reverse();
  const strip = el("div", "strip");
  let shown = 0;
  for (const { id, share } of drawnFrom(token, kept)) {
    shown += share;
    strip.append(setVars(el("i", id === token.id ? "hit" : ""), { "--f": share }));
  }
  if (kept - shown > 0.001) strip.append(setVars(el("i", "rest"), { "--f": kept - shown }));
  for (const [name, share] of cuts) {
    if (share < 0.0005) continue;
    const gone = setVars(el("i", "gone"), { "--f": share });
    gone.dataset.cut = name;
    strip.append(gone);
  }
  const at = el("div", "at");
  const greedy = view.answer && isGreedy(view.answer.settingsAt(token));
  if (token.next) at.append(setVars(el("span", "", "before the draw"), { "--u": 0.15 }));
  else if (token.put) at.append(setVars(el("span", "", "forced: no draw"), { "--u": 0.15 }));
  else if (!greedy) {
    const draw = token.draw ?? NaN;
    strip.append(setVars(el("span", "tick"), { "--u": draw * kept }));
    at.append(
      setVars(el("span", "", `draw ${draw.toFixed(3)}`), { "--u": clamp(draw * kept, 0.1, 0.9) }),
    );
  } else at.append(setVars(el("span", "", "greedy: no draw"), { "--u": 0.15 }));
  box.replaceChildren(at, strip, masses(token, kept, cuts));
  return undefined;
}

/**
 * The line of numbers under the strip; `cuts`: [filter, removed share] each.
 *
 * @param {Drawn} token
 * @param {number} kept
 * @param {Cut[]} cuts
 */
function masses({ allowed, n_kept: nKept }, kept, cuts) {
  const line = el("p", "mass");
  /** @param {string} name @param {string} text */
  const add = (name, text) => {
    const span = el("span", "", `${name} `);
    span.append(el("b", "", text));
    line.append(span);
  };
  const all = state.hello?.model.vocab_size;
  const vocabulary = all ? count(all) : "all";

  const of = allowed ? count(allowed.n) : vocabulary;
  if (allowed) add(`grammar allows ${of} of ${vocabulary}`, `${percent(allowed.probability)} %`);
  add(`${count(nKept ?? NaN)} of ${of} kept`, `${percent(kept)} %`);
  for (const [name, share] of cuts)
    add(name, share >= 0.0005 ? `−${percent(share)} %` : share > 0 ? "<0.1 %" : "0");
  return line;
}
