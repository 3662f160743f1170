// Controls and text around the map of heads and the words.

import { el, setText } from "../../ui/dom.js";
import { count, duration, percent, plural, tokenLabel } from "../../ui/format.js";
import { newSegmented } from "../../ui/segmented.js";
import { backOf } from "./ask.js";
import { MAX_TOKENS } from "./measure.js";
import { NAMED_FROM, NAMED_TIMES, namedBy, nameOf } from "./scores.js";
import { strongest } from "./words.js";
import { ShareLegend } from "../shared/share-colours.js";

/** Entropies that differ by more than this (bits) do not match the run. */
const SAME_BITS = 0.01;
/** Number of words listed for the selected cell. */
const MAX_WORDS = 3;

/**
 * What a cell's colour shows: name and description.
 *
 * @type {Record<AttentionMode, [name: string, what: string]>}
 */
const MODES = {
  weights: [
    "Weights",
    "Each strip is the context from left to right; amber marks the focused token.",
  ],
  first: ["First", "Share on the first token. High: an attention sink."],
  previous: ["Previous", "Share on the previous token. High: a previous-token head."],
  copy: [
    "Copy",
    "Share on the tokens that followed earlier copies of this token. High: an induction head.",
  ],
  self: ["Itself", "Share on the token itself."],
  entropy: [
    "Entropy",
    "Entropy of the weights, from 0 bits (one token) to 8 bits (256 tokens equally).",
  ],
};

export class AttentionFrame {
  /**
   * `act`: {onMode(mode), onOver(), onAskBack(), onKey(event)}.
   *
   * @param {HTMLElement} root
   * @param {{onMode: (mode: AttentionMode) => void, onOver: () => void, onAskBack: () => void, onKey: (event: KeyboardEvent) => void}} act
   */
  constructor(root, act) {
    const left = root.appendChild(el("div", "at-heads"));
    const bar = left.appendChild(el("div", "at-bar"));
    bar.append(
      newSegmented({
        legend: "Colour shows",
        name: "at-mode",
        options: Object.entries(MODES).map(([mode, [label]]) => [/** @type {AttentionMode} */ (mode), label]),
        value: "weights",
        onChange: act.onMode,
      }),
    );
    this.over = bar.appendChild(el("button", "text at-mean-over"));
    this.over.type = "button";
    this.over.title = `Show mean scores over the last ${MAX_TOKENS} tokens`;
    this.over.addEventListener("click", act.onOver);
    this.grid = left.appendChild(el("div", "at-map"));
    this.canvas = this.grid.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    this.#slider(act.onKey);
    const right = root.appendChild(el("div", "at-side"));
    const head = right.appendChild(el("div", "at-head"));
    this.summary = head.appendChild(el("p", "at-summary"));
    this.back = head.appendChild(el("button", "text"));
    this.back.type = "button";
    this.back.addEventListener("click", act.onAskBack);
    this.words = right.appendChild(el("div", "at-words"));
    this.words.setAttribute("role", "group");
    this.words.setAttribute("aria-label", "Words of the context");
    const foot = right.appendChild(el("div", "at-foot"));
    this.legend = new ShareLegend();
    foot.append(this.legend.node);
    this.help = foot.appendChild(el("p", "at-help"));
  }

  /** @param {(event: KeyboardEvent) => void} onKey */
  #slider(onKey) {
    const how = el("p", "vh", "Up and down arrows select layers, left and right select heads.");
    how.id = "at-how";
    this.grid.append(how);
    this.grid.tabIndex = 0;
    this.grid.setAttribute("role", "slider");
    this.grid.setAttribute("aria-label", "Head");
    this.grid.setAttribute("aria-describedby", how.id);
    this.grid.setAttribute("aria-valuemin", "0");
    this.grid.addEventListener("keydown", onKey);
  }

  /**
   * @param {{shown: AttentionShown, choice: HeadChoice, line: Float32Array, over: boolean, measured: WideScores | null}} now
   */
  draw({ shown, choice, line, over, measured }) {
    const { nLayers, nHeads } = shown;
    const at = choice.layer === null ? 0 : choice.layer * (nHeads + 1) + (choice.head ?? -1) + 2;
    const text = sentence(shown, choice, line, measured);
    setText(this.summary, text);
    this.grid.setAttribute("aria-valuemax", String(nLayers * (nHeads + 1)));
    this.grid.setAttribute("aria-valuenow", String(at));
    this.grid.setAttribute("aria-valuetext", text);
    setText(this.help, help(shown, measured));
    this.legend.draw();
    this.#drawOver(over, measured);
    const { left, soon } = backOf(shown);
    this.back.hidden = left === 0 || soon;
    setText(this.back, left ? `Query ${plural(left, "later token")}` : "");
  }

  /** @param {boolean} over @param {WideScores | null} measured */
  #drawOver(over, measured) {
    const { done, total } = measured ?? {};
    this.over.setAttribute("aria-pressed", String(over));
    const text = over && total ? `${done} of ${total}` : `Mean over ${MAX_TOKENS} tokens`;
    setText(this.over, text);
  }
}

// ---- text ------------------------------------------------------------------------------------

/** @param {number} share */
const inPercent = (share) => `${percent(share)}\u00a0%`;
/** @param {string} text */
const quoted = (text) => `“${tokenLabel(text, "·")}”`;

/**
 * Describe the selected cell: heads, most attended words, entropy, kind of head.
 *
 * @param {AttentionShown} attentionShown
 * @param {HeadChoice} choice
 * @param {Float32Array} line
 * @param {WideScores | null} measured
 */
function sentence({ nLayers, nHeads, nKvHeads, texts, position, ...rest }, choice, line, measured) {
  const before = line.slice(0, position + 1);
  const most = strongest(before, MAX_WORDS)
    .map((at) => `${quoted(texts[at])} ${inPercent(line[at])}`)
    .join(", ");
  const { layer, head } = choice;
  const word = quoted(texts[position]);
  if (layer === null) return `${word}, mean of all ${plural(nLayers * nHeads, "head")}: ${most}`;
  if (head === null) return `${word}, layer ${layer}, mean of ${plural(nHeads, "head")}: ${most}`;
  const group = nKvHeads < nHeads ? `, KV head ${Math.floor((head * nKvHeads) / nHeads)}` : "";
  const i = layer * nHeads + head;
  const name = nameOf(rest.scores, i);
  const n = measured?.scores && measured.to - measured.from + 1;
  const over = n ? `on average over ${plural(n, "token")}` : "at this token";
  const kind = name ? ` ${KIND[name.place]} ${over}: ${inPercent(name.score)}.` : "";
  const bits = `${rest.bits[i].toFixed(2)}\u00a0bits`;
  return `${word}, layer ${layer}, head ${head}${group}: ${most}; ${bits}.${kind}`;
}

const KIND = {
  first: "Attention sink",
  previous: "Previous-token head",
  copy: "Induction head",
  self: "Attends to itself",
};

/** @param {AttentionShown} shown @param {WideScores | null} measured */
function help(shown, measured) {
  const { mode, scores, nLayers, nHeads } = shown;
  const [, what] = MODES[mode];
  if (measured?.message) return `Mean scores failed: ${measured.message}`;
  const { message } = backOf(shown);
  if (message) return `Attention from later tokens failed: ${message}`;
  const over = measured?.scores
    ? ` Mean over tokens ${count(measured.from + 1)} to ${count(measured.to + 1)}.`
    : "";
  if (mode === "entropy") return what;

  if (mode !== "weights") return `${scores[mode] ? "" : "None at this token. "}${what}${over}`;
  const n = namedBy(scores, nLayers * nHeads);
  const named = `first ${n.first}, previous ${n.previous}, copy ${n.copy}, self ${n.self}`;
  const bound = `${100 * NAMED_FROM} % and ${NAMED_TIMES}× uniform`;
  const total = count(nLayers * nHeads);
  return `${what} Heads with at least ${bound}: ${named} of ${total}.${over}`;
}

/** Describe where the numbers come from. @param {AttentionNow} attentionNow */
export function sourceOf({ info, run, unread, bits }) {
  const time = info.ms === undefined ? "" : ` in ${duration(info.ms)}`;
  const source = `Recomputed from this run's tokens${time}`;
  if (unread) return `${source}; the run has not read this token, so it measured no entropies here.`;
  if (!run) return `${source}; no measured entropies at this token to compare with.`;
  const ofRun = run.flat();
  const apart = Math.max(...bits.map((own, i) => Math.abs(own - (ofRun[i] ?? NaN))));
  return apart <= SAME_BITS
    ? `${source}; all entropies match those measured in the run.`
    : `${source}; entropies differ from the run’s by up to ${apart.toFixed(2)} bits.`;
}
