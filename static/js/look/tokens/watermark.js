// View of Tokens: the green and red tokens of a watermark, and whether a text has one.

import { ask } from "../../net/ask.js";
import { isLocal } from "../../net/connection.js";
import { latest } from "../../net/inspect.js";
import { changed, state } from "../../state.js";
import { drawPairs, el, fitCanvas } from "../../ui/dom.js";
import { count, figure, percent, plural } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";
import { watermarkOf } from "../../turns/watermark.js";
import { label, rule } from "../shared/chart.js";
import { Missing } from "../shared/context.js";

/**
 * @typedef {{id: number, piece: string, green: boolean | null, window_z: number | null}} MarkedToken
 * @typedef {{num_tokens_scored: number, num_green_tokens: number, green_fraction: number, z_score: number,
 *   p_value: number, prediction: boolean, tokens: MarkedToken[]}} Detection
 */

const TYPED_AFTER_MS = 300;
/** Tokens of the windows whose z the curve shows, and from which z on a text counts as watermarked. */
const WINDOW = 25;
const Z_THRESHOLD = 3;
const NO_SERVER =
  "The engine in the browser cannot look for watermarks. Open the page of a server that runs the model.";
const COLUMNS = ["token", { name: "id", format: String }, "text", "green", `z of the last ${WINDOW}`];

/** Text shown: "answer" or "own". */
let wanted = "answer";
/** @type {Detection | null} */
let found = null;
let answered = "";

/** Elements. */
const at = {
  choice: newSegmented({
    legend: "Text",
    name: "tokens-watermark-text",
    options: [
      ["answer", "Answer"],
      ["own", "Own text"],
    ],
    value: wanted,
    onChange: (value) => {
      wanted = value;
      changed("look");
    },
  }),
  field: el("textarea"),
  verdict: el("p", "tk-verdict"),
  figures: el("dl", "pairs tk-counts"),
  text: el("div", "tk-marked"),
  curve: el("canvas", "tk-curve"),
};

/** @type {InstrumentView<Focus>} */
export const watermark = {
  name: "watermark",
  label: "Watermark",

  setUp(root) {
    const side = root.appendChild(el("div", "column tk-typed"));
    Object.assign(at.field, { spellcheck: false, placeholder: "Paste a text" });
    at.field.setAttribute("aria-label", "Text to look for a watermark in");
    at.field.addEventListener("input", () => changed("look"));
    side.append(at.choice, at.field, at.verdict, at.figures);
    const main = root.appendChild(el("div", "tk-marked-box"));
    at.text.tabIndex = 0;
    at.text.setAttribute("role", "group");
    at.text.setAttribute("aria-label", "Green and red tokens");
    at.curve.setAttribute("role", "img");
    main.append(at.text, at.curve);
  },

  async show({ answer, hello, signal }) {
    const written = answer?.tokens.filter(({ eos }) => !eos) ?? [];
    const own = wanted === "own" || !written.length;
    drawSegmented(at.choice, own ? "own" : "answer", (value) => value === "answer" && !written.length);
    at.field.hidden = !own;
    if (isLocal()) throw new Missing(NO_SERVER);
    const typed = at.field.value;
    const text = own ? { content: typed } : { tokens: written.map(({ id }) => id) };
    const { greenlist_ratio: ratio, hashing_key: key, selfhash_width: width } = state.settings;
    const scheme = width ? { seeding_scheme: "selfhash", context_width: width } : { seeding_scheme: "lefthash" };
    const least = (width || 1) + 1;
    const tooShort = own ? !typed.trim() : written.length < least;
    if (tooShort) {
      show(null, null);
      at.verdict.textContent = own
        ? "Paste a text to see whether this model wrote it with a watermark of this key."
        : `The answer is too short: which tokens are green depends on ${plural(width || 1, "token")}.`;
      return "";
    }
    const body = { ...text, greenlist_ratio: ratio, hashing_key: key, ...scheme, window: WINDOW };
    const asked = JSON.stringify([hello.model.name, body]);
    if (asked !== answered || !found) {
      if (own) await pause(TYPED_AFTER_MS, signal);
      found = await latest("watermark", body, detect);
      answered = asked;
    }
    show(found, own ? null : answer);
    return (
      `Counted by the server as transformers’ WatermarkDetector does, with key ${key}, a green share of ` +
      `${ratio} and ${width ? `self-hash of ${plural(width, "token")}` : "lefthash"}, as set in Sampling under “penalties and more”.`
    );
  },

  table: () => ({
    columns: COLUMNS,
    rows: (found?.tokens ?? []).map(({ id, piece, green, window_z: z }, i) => [
      i + 1, id, piece, green === null ? "" : green ? "green" : "red", z,
    ]),
  }),
};

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
const pause = (ms, signal) =>
  new Promise((resolve) => {
    setTimeout(resolve, ms);
    signal.addEventListener("abort", () => resolve());
  });

/** Ask the server. Throws Missing with its sentence for a text that it refuses. @param {object} body */
async function detect(body) {
  try {
    return /** @type {Detection} */ (await ask("watermark", { method: "POST", body }));
  } catch (error) {
    throw new Missing(/** @type {Problem} */ (error).message);
  }
}

/**
 * Draw what was found; `answer`: the answer that it is about, whose events tell the cost.
 *
 * @param {Detection | null} detection
 * @param {Answer | null} answer
 */
function show(detection, answer) {
  found = detection;
  at.text.replaceChildren(...(detection?.tokens ?? []).map(wordOf));
  drawCurve(at.curve, detection?.tokens ?? []);
  at.curve.hidden = !detection;
  if (!detection) {
    drawPairs(at.figures, []);
    return;
  }
  const { z_score: z, p_value: p, num_green_tokens: green, num_tokens_scored: n } = detection;
  at.verdict.textContent = detection.prediction
    ? `A watermark of this key: by chance, one text in ${oneIn(p)} has so many green tokens.`
    : "No watermark of this key was found: many texts without one have as many green tokens.";
  const sums = answer && watermarkOf(answer);
  /** @type {[string, string][]} */
  const pairs = [
    ["z", z.toFixed(2)],
    ["p", p < 1e-4 ? p.toExponential(1) : p.toFixed(4)],
    ["green", `${count(green)} of ${plural(n, "token")}, ${percent(green / n)} %`],
  ];
  if (sums?.drawn) pairs.push(["cost", `${figure(sums.bits / sums.drawn)} bits a token`]);
  if (sums && answer) pairs.push(["perplexity", figure(perplexityOf(answer))]);
  drawPairs(at.figures, pairs);
}

/** @param {number} p */
const oneIn = (p) => (p > 1e-12 ? count(Math.round(1 / p)) : "more than a trillion");

/** Perplexity of the tokens drawn with a watermark, by the model's own probabilities. @param {Answer} answer */
function perplexityOf({ tokens }) {
  const logprobs = tokens.flatMap(({ logprob, watermark: mark }) => (mark ? logprob : []));
  return Math.exp(-logprobs.reduce((sum, each) => sum + each, 0) / logprobs.length);
}

/** @param {MarkedToken} token */
function wordOf({ piece, green, window_z: z }) {
  const node = el("span", "tk-mark", piece);
  if (green !== null) node.dataset.green = String(green);
  const side = green === null ? "not scored" : green ? "green" : "red";
  node.title = z === null ? side : `${side}; z of the last ${WINDOW}: ${z.toFixed(2)}`;
  return node;
}

/** Draw z of each window over the text. @param {HTMLCanvasElement} canvas @param {MarkedToken[]} tokens */
function drawCurve(canvas, tokens) {
  const [context, width, height] = fitCanvas(canvas);
  if (!width || height < 40) return;
  const values = tokens.map(({ window_z: z }) => z);
  const seen = values.filter((z) => z !== null);
  const high = Math.max(Z_THRESHOLD + 1, ...seen);
  const low = Math.min(-1, ...seen);
  const left = 28;
  /** @param {number} z */
  const y = (z) => 6 + ((high - z) / (high - low)) * (height - 12);
  /** @param {number} i */
  const x = (i) => left + ((i + 0.5) / Math.max(1, tokens.length)) * (width - left);
  for (const z of [0, Z_THRESHOLD]) {
    rule(context, left, Math.round(y(z)), width - left, 1, z ? "edge" : "line");
    label(context, z ? `z ${z}` : "0", left - 6, y(z), { align: "end" });
  }
  context.strokeStyle = palette.data;
  context.lineWidth = 1.5;
  context.beginPath();
  let begun = false;
  values.forEach((z, i) => {
    if (z === null) return;
    if (begun) context.lineTo(x(i), y(z));
    else context.moveTo(x(i), y(z));
    begun = true;
  });
  context.stroke();
  context.lineWidth = 1;
  const last = seen.at(-1);
  const words = last === undefined
    ? `Fewer than ${WINDOW} tokens were scored.`
    : `z of the last ${WINDOW} tokens along the text, from ${Math.min(...seen).toFixed(1)} to ${Math.max(...seen).toFixed(1)}; at the end ${last.toFixed(1)}.`;
  canvas.setAttribute("aria-label", words);
}
