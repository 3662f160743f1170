// Filters, the instrument that draws the sampling waterfall (gpu/inspection/waterfall.py): how the
// focused token was chosen by logits, penalties, temperature, top-k, top-p, min-p and draw. While
// the sliders differ from the run's settings, it previews them on the same logits.

import { el } from "../../ui/dom.js";
import { count, duration, percent, tokenLabel } from "../../ui/format.js";
import { SLIDERS } from "../../settings/sampling-settings.js";
import { changed, state } from "../../state.js";
import { numberOf, view } from "../../view.js";
import { Missing, runKey, sequenceOf } from "../shared/context.js";
import { flowOf } from "./flow.js";
import { FlowPlot } from "./plot.js";
import { FlowFigures, heading } from "./figures.js";
import { numbersOf } from "./table.js";
import { samplingOf, waterfallOf } from "../shared/waterfall.js";
import { askLatest, askNewest, AnswerCache } from "../shared/answer-cache.js";

/** Number of the most likely tokens that are listed; the others are grouped. */
const TOP = 60;
/** Number of forbidden tokens that the summary names. */
const N_FORBIDDEN = 3;
/** Pause between questions while the newest token is followed, so that the run is not held up. */
const FOLLOW_MS = 120;
const MAX_CACHE_BYTES = 1 << 20;
const cache = new AnswerCache(MAX_CACHE_BYTES);

/** @type {HTMLElement} */
let summary;
/** @type {FlowPlot} */
let plot;
/** @type {FlowFigures} */
let figures;
/**
 * What `show` drew last: {token, flow, real, texts, used, wanted}; `real`: null if no preview.
 *
 * @type {FlowNow | null}
 */
let now = null;

/** @type {Instrument} */
export const filters = {
  needs: "token",
  asks: true,

  setUp(root) {
    summary = root.appendChild(el("p", "readout wf-summary"));
    figures = new FlowFigures(root);
    plot = new FlowPlot(figures.canvas, () => now && figures.draw(now, plot.lit));
    new ResizeObserver(() => changed("look")).observe(figures.canvas);
  },

  async show(context) {
    const { token, answer, signal } = context;
    if (token.prompt !== undefined)
      throw new Missing("This token is part of the prompt, not chosen. Select a written one.");
    if (token.put)
      throw new Missing("You put this token here, so it was not drawn. Select another one.");
    const used = samplingOf(answer.settingsAt(token));
    const ask = questionOf({ ...context, token });
    if (isFollowing(answer) && !cache.get(ask.key(used))) await pause(FOLLOW_MS, signal);
    const real = await ask.with(used);
    const wanted = samplingOf(state.settings);
    const changes = changesOf(used, wanted);
    const seen = changes.length ? await ask.with(wanted) : real;
    const texts = textsOf(token, [real, seen]);
    now = {
      token,
      used,
      wanted,
      changes,
      texts,
      flow: flowOf(seen, TOP),
      real: changes.length ? flowOf(real, TOP) : null,
      vocabulary: context.hello.model.vocab_size,
      nameOf: (band) => nameOf(band, texts, token),
    };
    drawSummary(now);
    plot.show(now);
    return provenance(real, now);
  },

  hide() {
    plot.light(null);
  },

  table: () => numbersOf(now),
};

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
const pause = (ms, signal) =>
  new Promise((resolve) => {
    setTimeout(resolve, ms);
    signal.addEventListener("abort", () => resolve());
  });

/** @param {Answer} answer */
const isFollowing = (answer) => answer.running && view.pinned === null && view.hover === null;

// ---- the question ----------------------------------------------------------------------------

/** @param {StageSettings} used @param {StageSettings} wanted @returns {StageChange[]} */
const changesOf = (used, wanted) =>
  SLIDERS.filter(({ name }) => used[name] !== wanted[name]).map(({ name, label }) => ({
    name,
    label,
    from: used[name],
    to: wanted[name],
  }));

/**
 * Return the question about the focused token; `key(settings)` identifies a cached answer.
 *
 * @param {TokenFocus & {token: Token}} context
 */
function questionOf(context) {
  const { token } = context;
  const { segment } = sequenceOf(context);
  const run = `${runKey(segment)} ${token.number ?? token.index}`;
  /** @param {StageSettings} settings */
  const key = (settings) => `${run} ${JSON.stringify(settings)}`;
  /** @param {StageSettings} settings */
  const ask = async (settings) => {
    const whole = waterfallOf(context, settings, { top: TOP });
    const answer = await (isFollowing(context.answer)
      ? askNewest("filters", whole, segment, context.signal)
      : askLatest("filters", whole));
    return cache.set(key(settings), answer);
  };
  /** @param {StageSettings} settings */
  const known = async (settings) => cache.get(key(settings)) ?? ask(settings);
  return { key, with: known };
}

// ---- text ------------------------------------------------------------------------------------

/** Map ids to texts, of the answers and of the run. @param {Token} token @param {FrameAnswer[]} answers */
function textsOf({ candidates, id, text }, answers) {
  const pieces = answers.flatMap(({ info }) => Object.entries(info.pieces ?? {}));
  const texts = new Map(pieces.map(([key, piece]) => [Number(key), piece]));
  for (const candidate of candidates) texts.set(candidate.id, candidate.text);
  if (text) texts.set(id, text);
  return texts;
}

/** @param {NamedBand} band @param {Map<number, string>} texts @param {Token} token */
function nameOf({ id, count: n = null }, texts, token) {
  if (id === null) return n === null ? "others" : `${count(n)} more`;
  if (id === token.id && token.eos) return "end of text";
  return tokenLabel(texts.get(id) ?? `id ${id}`, "–");
}

/** @param {FlowNow} now */
function drawSummary(now) {
  const { flow, real, token, changes, nameOf: name } = now;
  summary.toggleAttribute("data-preview", !!real);
  const grammar = flow.allowed ? ` ${describeGrammar(flow.allowed, now)}` : "";
  const strong = el("b", "", real ? "Preview" : `Token ${numberOf(token)}`);
  const drawn = quoted(name({ id: token.id }));
  const text = real
    ? `with ${previewed(changes)}. ${outcome(now, drawn)}`
    : describeRun(now, drawn);
  summary.replaceChildren(strong, ` ${text}${grammar}`);
}

/**
 * Say what a grammar left to the stages, and what the model wanted instead.
 *
 * @param {NonNullable<Flow["allowed"]>} allowed
 * @param {FlowNow} now
 */
function describeGrammar(allowed, { flow: { forbidden }, texts, vocabulary }) {
  const all = count(vocabulary);
  const left = `The grammar allows ${count(allowed.n)} of ${all} tokens`;
  const share = `to which the model gives ${percent(allowed.probability)} %`;
  /** @param {number} id */
  const named = (id) => quoted(tokenLabel(texts.get(id) ?? `id ${id}`, "–"));
  const listed = forbidden
    .slice(0, N_FORBIDDEN)
    .map(({ id, share: part }) => `${named(id)} ${percent(part)} %`);
  const others = listed.length ? ` It forbids ${listed.join(", ")}.` : "";
  return `${left}, ${share}.${others} The stages are about the allowed tokens alone.`;
}

/** @param {string} word */
const quoted = (word) => `“${word}”`;

/** "temperature 1.3 and top-k 20; drawn with 0.8 and 40" @param {StageChange[]} changes */
function previewed(changes) {
  /** @param {string[]} texts */
  const list = (texts) => texts.join(", ").replace(/, ([^,]*)$/, " and $1");
  /** @param {StageChange} change @param {number} x */
  const value = ({ name }, x) => heading(name, x);
  const to = list(changes.map((change) => `${change.label} ${value(change, change.to)}`));
  const from = list(changes.map((change) => value(change, change.from)));
  return `${to}; drawn with ${from}`;
}

/**
 * Say what the same random number draws with the preview's settings.
 *
 * @param {FlowNow} now
 * @param {string} drawn
 */
function outcome({ flow, token, nameOf: name }, drawn) {
  const { chosen, greedy, byId, draw } = flow;
  const same = chosen === token.id;
  const other = quoted(name({ id: chosen }));
  if (greedy) return same ? `Greedy takes ${drawn} too.` : `Greedy takes ${other}.`;
  const number = draw.toFixed(3);
  if (same) return `The number ${number} draws ${drawn} as well.`;
  const why = byId.get(token.id)?.cut ? `${drawn} is cut: the` : "The";
  return `${why} number ${number} then draws ${other}.`;
}

/** Say what the run's own settings did. @param {FlowNow} now @param {string} drawn */
function describeRun({ flow, token }, drawn) {
  const { stages, greedy, draw, byId } = flow;
  const start = `${drawn} with the run's settings:`;
  const vocabulary = count(stages[0].n_kept);
  if (greedy) return `${start} greedy takes the most likely of ${vocabulary}; no filter, no draw.`;
  const { n_kept: n, kept: mass } = stages[stages.length - 1];
  const left = `${start} ${count(n)} of ${vocabulary} tokens keep ${percent(mass)} %`;
  const { low = null, high = null } = byId.get(token.id) ?? {};
  if (low === null || high === null) return `${left}.`;
  if (draw < low || draw > high) return `${left}; a watermark moved their shares, and ${draw.toFixed(3)} was drawn.`;
  return `${left}; ${draw.toFixed(3)} was drawn, in its ${low.toFixed(3)} to ${high.toFixed(3)}.`;
}

/**
 * Say where the numbers come from, and whether the engine reproduced the run's.
 *
 * @param {FrameAnswer} answer
 * @param {FlowNow} now
 */
function provenance({ info }, { token, real, nameOf: name }) {
  const time = info.ms === undefined ? "" : ` in ${duration(info.ms)}`;
  const again = `Computed by the engine${time} from this token's logits`;
  const right = info.chosen === token.id && Math.abs(info.draw - (token.draw ?? NaN)) < 1e-6;
  const same = `${again}: the same random number and token as in the run.`;
  if (right) return real ? `${same} The outline is the run.` : same;
  const other = name({ id: info.chosen });
  return `${again}: now “${other}”, in the run “${name({ id: token.id })}”.`;
}
