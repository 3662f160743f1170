// Request view of the timeline: what host, GPU, network and page did during a request.

import { moveFocus } from "../../core-sample/controls.js";
import { drawPairs, el, setText } from "../../ui/dom.js";
import { count, duration, plural, tokenLabel } from "../../ui/format.js";
import { numberOf, pin, point } from "../../view.js";
import { requireTokens } from "../shared/context.js";
import { Histogram } from "./histogram.js";
import { Roofline } from "../plan/roofline.js";
import { quantile } from "../shared/quantile.js";
import { intervalsOf, measure } from "./spans.js";
import { COLOURS, StepChart } from "./chart.js";

const CLOCKS =
  "Engine clock: queue, prefill, host. GPU clock: durations only. Server clock: template, pipe.";
const ALIGNED = "Clocks aligned so that the fastest message has zero delay.";

/** @type {HTMLElement} */
let readout;
/** @type {HTMLElement} */
let figures;
/** @type {StepChart} */
let chart;
/** @type {Histogram} */
let bars;
/** @type {Roofline} */
let roof;
/**
 * Data of the last `show`: {segment, tokens, measured}.
 *
 * @type {{segment: Segment, tokens: Token[], measured: MeasuredRun}}
 */
let now;

/** @type {InstrumentView<RunFocus>} */
export const request = {
  name: "request",
  label: "Request",

  setUp(root) {
    readout = root.appendChild(el("p", "readout tl-readout"));
    chart = new StepChart(root, { look, choose, move });
    const below = root.appendChild(el("div", "tl-below"));
    figures = below.appendChild(el("dl", "figures tl-figures"));
    bars = new Histogram(below);
    roof = new Roofline(below);
  },

  show({ answer, token, index, hello }) {
    const segment = token?.segment ?? (token ? answer.promptSegment : answer.segment);
    requireTokens(segment);
    const tokens = answer.tokens.slice(segment.first, segment.base + segment.nTokens);
    const measured = measure(segment, tokens, hello.limits.in_flight);
    now = { segment, tokens, measured };
    const at = index !== null && index >= segment.first ? index - segment.first : null;
    chart.draw(measured, tokens, at);
    const sorted = intervalsOf(tokens);
    bars.draw(sorted, at ? tokens[at].times.interval : null);
    roof.draw(segment, tokens, at);
    drawFigures(segment, tokens, measured, sorted);
    drawReadout(token, at);
    chart.describe(readout.textContent, at === null ? 0 : at + 1, tokens.length);
    return measured.live
      ? `${CLOCKS} Browser clock: socket, draw. ${ALIGNED}`
      : `${CLOCKS} The page was reloaded since, so its own times are unknown.`;
  },

  table() {
    const { segment, tokens, measured } = now;
    const parts = measured.spans
      .filter(({ index }) => index === null)
      .map(({ track, part, from, to }) => [
        track === "GPU" ? `${part} on the GPU` : part,
        null,
        "",
        from,
        to - from,
        ...PARTS.map(() => null),
        null,
        null,
      ]);
    const costs = new Map(roof.steps.map((step) => [step.token, step]));
    const steps = measured.steps.map((step, i) => [
      i ? "step" : "first token",
      segment.first + i + 1,
      tokens[i].text,
      step.from,
      step.interval,
      ...PARTS.map(([, part]) => step[part]),
      costs.get(i)?.flops ?? null,
      costs.get(i)?.bytes ?? null,
    ]);
    return { columns: COLUMNS, rows: [...parts, ...steps] };
  },
};

/** Parts of a step: label, and field in `measure`. @type {[name: string, part: keyof StepDurations][]} */
const PARTS = [
  ["waiting (pace)", "paced"],
  ["encode", "encode"],
  ["GPU", "gpu"],
  ["wait", "wait"],
  ["read", "read"],
  ["pipe", "pipe"],
  ["socket", "socket"],
  ["draw", "page"],
];
const COLUMNS = [
  "part",
  { name: "token", format: count },
  "text",
  "from, ms",
  "length, ms",
  ...PARTS.map(([name]) => `${name}, ms`),
  { name: "operations", format: count },
  { name: "bytes", format: count },
];

// ---- focus -----------------------------------------------------------------------------------

/** @param {number | null} step */
const look = (step) => point(step === null ? null : now.segment.first + step);
/** @param {number | null} step */
const choose = (step) => pin(step === null ? null : now.segment.first + step);
/** @param {string} key */
const move = (key) => moveFocus(key, false);

/** @param {Token | PromptToken | null} token @param {number | null} at */
function drawReadout(token, at) {
  const step = at === null ? null : now.measured.steps[at];
  if (!step || !token) {
    const { done, total, reused, moved } = now.segment.prefill;
    const found =
      (reused ? `, ${count(reused)} reused from the cache` : "") +
      (moved ? `, ${count(moved)} moved from other texts` : "");
    setText(readout, `Prompt: ${count(done)} of ${plural(total, "token")} processed${found}.`);
    return;
  }
  const word = el("b", "", `${numberOf(token)} ${tokenLabel(token.text, token.eos ? "end" : "·")}`);
  const since = at ? "after the previous token" : "after the engine received the request";
  readout.replaceChildren(word, el("span", "", `${duration(step.interval)} ${since}`));
  for (const [name, part] of PARTS) {
    if (step[part] === null) continue;
    const box = el("span", "", `${name} ${duration(step[part])}`);
    const swatch = el("i", part === "paced" ? "hatched" : "");
    if (COLOURS[part]) swatch.style.setProperty("--swatch", `var(--${COLOURS[part]})`);
    box.prepend(swatch);
    readout.append(box);
  }
}

/**
 * Return the rows about speculative decoding: none without drafts.
 *
 * @param {ToPage.Timings | null} timings
 * @param {Token[]} tokens
 * @returns {[name: string, value: string][]}
 */
function draftFigures(timings, tokens) {
  const drafts = tokens.map(({ draft }) => draft).filter((draft) => !!draft);
  if (!drafts.length) return [];
  const accepted = drafts.filter((draft) => draft.accepted).length;
  const n = drafts.reduce((sum, draft) => sum + 1 + (draft.discarded?.length ?? 0), 0);
  const speedup = timings?.draft_speedup;
  /** @type {[name: string, value: string][]} */
  const rows = [
    ["drafts accepted", `${count(accepted)} of ${count(n)}`],
    ["by place", placesOf(drafts)],
    ["faster by drafts", speedup ? `× ${speedup.toFixed(2)}` : "–"],
  ];
  if (timings?.draft_ms) rows.push(["drafting", duration(timings.draft_ms)]);
  return rows;
}

/**
 * Return the share of accepted drafts at each place of a step: "80 70 65 %".
 *
 * @param {ToPage.Draft[]} drafts
 */
function placesOf(drafts) {
  /** @type {{n: number, accepted: number}[]} */
  const counts = [];
  for (const { place, accepted, discarded = [] } of drafts) {
    for (let at = place; at <= place + discarded.length; at += 1) {
      const own = (counts[at] ??= { n: 0, accepted: 0 });
      own.n += 1;
      if (accepted) own.accepted += 1;
    }
  }
  return `${counts.map((own) => Math.round((100 * own.accepted) / own.n)).join(" ")} %`;
}

/**
 * @param {Segment} segment
 * @param {Token[]} tokens
 * @param {MeasuredRun} measuredRun
 * @param {number[]} sorted
 */
function drawFigures(segment, tokens, { steps }, sorted) {
  /** @param {number} [value] */
  const ms = (value = NaN) => (Number.isFinite(value) ? duration(value) : "–");
  /** @param {keyof StepDurations} part */
  const median = (part) => {
    const known = steps.map((step) => step[part]).filter((value) => value !== null);
    return quantile(known.sort((a, b) => a - b), 0.5);
  };
  const mean = sorted.reduce((sum, value) => sum + value, 0) / sorted.length;
  /** @type {[name: string, value: string][]} */
  const rows = [
    ["TTFT", ms(segment.timings?.ttft_ms ?? tokens[0]?.times.interval)],
    ["TPOT", ms(segment.timings?.tpot_ms || mean)],
    ["p50", ms(quantile(sorted, 0.5))],
    ["p95", ms(quantile(sorted, 0.95))],
    ["socket, p50", ms(median("socket"))],
    ["draw, p50", ms(median("page"))],
    ...draftFigures(segment.timings, tokens),
  ];
  drawPairs(figures, rows);
}
