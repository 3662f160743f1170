// @ts-nocheck
// The panel of one token: its candidates before and after the filters, and the draw.

import { byId, clamp, el, setAttr, setText, setVars } from "../ui/dom.js";
import { previewOf } from "../chat/pace.js";
import { whyNotReplaceable } from "../chat/replace-token-run.js";
import { count, ordinal, percent, probability, tokenLabel } from "../ui/format.js";
import { FILTERS, PENALTIES, SETTING_BY_NAME } from "../settings/sampling-settings.js";
import { drawReplaceToken, setUpReplaceToken } from "../chat/replace-token.js";
import { lackOf } from "../ui/lacks.js";
import { on, state } from "../state.js";
import { focused, focusedToken, numberOf, promptLength, step, view, written } from "../view.js";

const list = byId("cands");
const MAX_ROWS = 20;
const MIN_ROWS = 6;
const ROW = 20;
const FIGURE_SPACE = "\u2007"; // as wide as a digit
let nRows = 12;
/** Candidates of the rows, and whether one of them can replace the token. */
let rows = [];
let free = false;

export function setUpCandidates() {
  byId("tok-prev").addEventListener("click", () => step(-1));
  byId("tok-next").addEventListener("click", () => step(1));
  setUpReplaceToken(list, (row) => rows[[...list.children].indexOf(row)]);
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
 */
function nextToken() {
  const preview = view.pinned === null && view.hover === null ? previewOf(view.answer) : null;
  if (!preview) return null;
  const { segment, tokens } = view.answer;
  const place = segment.nTokens;
  const number = (segment.params.first_index ?? 0) + preview.index;
  return { ...preview, id: null, text: "", segment, place, number, next: tokens.length + 1 };
}

function draw() {
  const next = nextToken();
  const token = next ?? focusedToken();
  byId("cands").toggleAttribute("data-next", next !== null);
  setText(byId("tok-no"), next ? count(next.next) : token ? numberOf(token) : "");
  setText(byId("tok-word"), next || !token ? "Next token" : wordOf(token));
  setText(byId("tok-sub"), token ? howChosen(token) : "");
  byId("tok-prev").disabled = !token || focused() === -promptLength();
  byId("tok-next").disabled = !token || focused() === written() - 1;
  const chosen = token?.prompt ? null : token;
  document.body.toggleAttribute("data-chosen", chosen !== null);
  free = chosen !== null && !next && !whyNotReplaceable(view.answer, focused());
  drawList(chosen);
  drawReplaceToken(free, next ? null : chosen);
  drawDraw(chosen);
}

function wordOf(token) {
  if (token.eos) return "end of text";
  const own = token.candidates?.find(({ id }) => id === token.id)?.text;
  return tokenLabel(token.text || own || "", "part of a character");
}

function howChosen(token) {
  if (token.next) return "not drawn yet";
  if (token.prompt && token.moved)
    return `given, moved here from position ${count(token.moved.source + token.prompt - token.moved.first)}`;
  if (token.prompt) return token.reused ? "given, found in cache" : "given, not chosen";
  if (token.rank === null && !Number.isFinite(token.logprob))
    return state.hello?.upstream ? "no probability was told" : "measurements are no longer kept";
  const p = `p ${probability(Math.exp(token.logprob))}`;
  if (token.draft && !token.draft.accepted) return `${p} · not “${rejected(token.draft)}”`;
  if (token.rank === null) return p;
  return `${p} · ${ordinal(token.rank)} ${token.draft ? "· drafted" : "choice"}`;
}

/** Return the text of a rejected draft and of those that fell with it. */
const rejected = ({ text, discarded = [] }) =>
  tokenLabel(text + discarded.map((other) => other.text).join(""), "part of a character");

/** Return the candidates to show: the most likely ones, and always the drawn one. */
function rowsOf(token) {
  const most = token.candidates.slice(0, nRows);
  if (!token.next && !most.some(({ id }) => id === token.id)) {
    const chosen = token.candidates.find(({ id }) => id === token.id) ?? {
      id: token.id,
      text: token.text,
      before: null,
      after: token.probability,
      cut: "",
    };
    most.splice(nRows - 1, 1, chosen);
  }
  return most;
}

function drawList(token) {
  rows = token ? rowsOf(token) : [];
  while (list.children.length < nRows) list.append(emptyRow());
  while (list.children.length > nRows) list.lastChild.remove();
  const most = Math.max(1e-9, ...rows.map(({ before, after }) => Math.max(before ?? 0, after)));
  for (let i = 0; i < nRows; i += 1) drawRow(list.children[i], rows[i], token, most);
}

function emptyRow() {
  const row = el("li");
  const bar = el("span", "b");
  bar.append(el("i", "b-out"), el("i", "b-in"));
  const word = el("button", "w");
  Object.assign(word, { type: "button", tabIndex: -1 });
  row.append(word, bar, el("span", "n"), el("span", "c"));
  return row;
}

function drawRow(row, candidate, token, most) {
  const [word, bar, number, note] = row.children;
  const drawn = !!candidate && candidate.id === token.id;
  const cut = SETTING_BY_NAME[candidate?.cut]?.label ?? "";
  const again = !!candidate && !cut && penalised(candidate, token);
  row.classList.toggle("pick-row", drawn);
  row.classList.toggle("cut", cut !== "");
  row.classList.toggle("again", again);
  bar.hidden = !candidate && focusedToken() !== null;
  const text = drawn && token.eos ? "end of text" : candidate?.text;
  setText(word, candidate ? tokenLabel(text, "–") : "");
  const share = candidate?.after || candidate?.before || 0;
  setText(number, candidate && !Number.isNaN(share) ? inColumn(percent(share)) : "");
  setText(note, !candidate ? "" : noteOf(candidate, token) || cut || (again ? "penalty" : ""));
  word.disabled = !candidate || !free;
  setAttr(word, "aria-hidden", String(!candidate)); // an empty row is not a button yet
  const act = word.disabled ? null : drawn ? "write on from here" : "write this instead";
  setAttr(row, "data-act", act);
  setAttr(word, "aria-label", act && `${word.textContent}: ${act}`);
  setVars(bar.children[0], { "--p": (candidate?.before ?? 0) / most });
  setVars(bar.children[1], { "--q": (candidate?.after ?? 0) / most });
  bar.children[0].hidden = bar.children[1].hidden = !candidate;
}

/** Pad a share to the width of "100.0", so that numbers do not move sideways from token to token.
 * Browsers count that as layout shift. */
const inColumn = (share) => share.padStart(5, FIGURE_SPACE);

/** Note beside a candidate. Where a person put a token, the drawn one is another candidate. */
function noteOf({ id }, token) {
  const { branch } = token.segment;
  const was = token.put && branch.at === focused() ? branch.was.id : null;
  if (id === token.id) return token.put ? "forced" : "drawn";
  return id === was ? "drawn" : "";
}

/**
 * Did a penalty act on this candidate? That for repetition acts on every token before it, the others
 * on those that were written: a run that continues another has some of them in its prompt.
 */
function penalised({ id }, token) {
  const { segment, place, number = 0 } = token;
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

/** Draw the strip: kept shares in falling order, removed mass hatched, the draw as a tick. */
function drawDraw(token) {
  const box = byId("draw");
  if (!token?.mass) return box.replaceChildren(el("p", "mass", token ? lackOf("draw") : ""));
  const [kept, ...removed] = token.mass;
  const cuts = FILTERS.map(({ label }, i) => [label, removed[i] ?? 0]).reverse();
  const strip = el("div", "strip");
  let shown = 0;
  for (const { id, before, cut } of token.candidates) {
    if (cut || before < 0.0005) continue;
    shown += before;
    strip.append(setVars(el("i", id === token.id ? "hit" : ""), { "--f": before }));
  }
  if (kept - shown > 0.001) strip.append(setVars(el("i", "rest"), { "--f": kept - shown }));
  for (const [name, share] of cuts) {
    if (share < 0.0005) continue;
    const gone = setVars(el("i", "gone"), { "--f": share });
    gone.dataset.cut = name;
    strip.append(gone);
  }
  const at = el("div", "at");
  const greedy = view.answer.settingsAt(token).temperature === 0;
  if (token.next) at.append(setVars(el("span", "", "before the draw"), { "--u": 0.15 }));
  else if (token.put) at.append(setVars(el("span", "", "forced: no draw"), { "--u": 0.15 }));
  else if (!greedy) {
    strip.append(setVars(el("span", "tick"), { "--u": token.draw * kept }));
    at.append(
      setVars(el("span", "", `draw ${token.draw.toFixed(3)}`), {
        "--u": clamp(token.draw * kept, 0.1, 0.9),
      }),
    );
  } else at.append(setVars(el("span", "", "greedy: no draw"), { "--u": 0.15 }));
  box.replaceChildren(at, strip, masses(token, cuts));
  return undefined;
}

/** The line of numbers under the strip; `cuts`: [filter, removed share] each. */
function masses(token, cuts) {
  const line = el("p", "mass");
  const add = (name, text) => {
    const span = el("span", "", `${name} `);
    span.append(el("b", "", text));
    line.append(span);
  };
  const all = state.hello?.model.vocab_size;
  const vocabulary = all ? count(all) : "all";
  const { allowed } = token;
  const of = allowed ? count(allowed.n) : vocabulary;
  if (allowed) add(`grammar allows ${of} of ${vocabulary}`, `${percent(allowed.probability)} %`);
  add(`${count(token.n_kept)} of ${of} kept`, `${percent(token.mass[0])} %`);
  for (const [name, share] of cuts)
    add(name, share >= 0.0005 ? `−${percent(share)} %` : share > 0 ? "<0.1 %" : "0");
  return line;
}
