// Around the map of heads and the words: what the colour shows, and what is chosen, in words.

import { el, setText } from "../dom.js";
import { count, duration, percent, plural, tokenLabel } from "../format.js";
import { backOf } from "./attentionask.js";
import { MOST_TOKENS } from "./attentionmeasure.js";
import { NAMED_FROM, NAMED_TIMES, namedBy, nameOf } from "./attentionscores.js";
import { strongest } from "./attentionwords.js";
import { ShareLegend } from "./shares.js";

/** Entropies farther apart than this are not those of the run. */
const SAME_BITS = 0.01;
/** How many words the chosen cell's sentence names. */
const MOST_WORDS = 3;

/** What the colour of a cell can show: its name and a sentence. */
const MODES = {
  weights: [
    "Weights",
    "A strip is the context, left to right; amber: the token that looks.",
  ],
  first: ["First", "Share on the first token, where attention goes that is not needed: a sink."],
  previous: ["Previous", "Share on the token before."],
  copy: [
    "Copy",
    "Share on the tokens that came after earlier copies of this token: an induction head.",
  ],
  self: ["Itself", "Share on the token itself."],
  entropy: [
    "Entropy",
    "Spread of the shares; the map's scale goes from 0 bits, one token alone, to 8, 256 alike.",
  ],
};

export class AttentionFrame {
  /** `act`: {onMode(mode), onOver(), onAskBack(), onKey(event)} */
  constructor(root, act) {
    const left = root.appendChild(el("div", "at-heads"));
    const bar = left.appendChild(el("div", "at-bar"));
    bar.append(modes(act.onMode));
    this.over = bar.appendChild(el("button", "text"));
    this.over.type = "button";
    this.over.title = `Ask about the last ${MOST_TOKENS} tokens, and show the mean of their scores`;
    this.over.addEventListener("click", act.onOver);
    this.grid = left.appendChild(el("div", "at-map"));
    this.canvas = this.grid.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    this.#slider(act.onKey);
    const right = root.appendChild(el("div", "at-side"));
    const head = right.appendChild(el("div", "at-head"));
    this.says = head.appendChild(el("p", "at-says"));
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

  #slider(onKey) {
    const how = el("p", "vh", "Up and down arrows move over layers, left and right over heads.");
    how.id = "at-how";
    this.grid.append(how);
    this.grid.tabIndex = 0;
    this.grid.setAttribute("role", "slider");
    this.grid.setAttribute("aria-label", "Head");
    this.grid.setAttribute("aria-describedby", how.id);
    this.grid.setAttribute("aria-valuemin", "0");
    this.grid.addEventListener("keydown", onKey);
  }

  draw({ shown, choice, line, over, measured }) {
    const { nLayers, nHeads } = shown;
    const at = choice.layer === null ? 0 : choice.layer * (nHeads + 1) + (choice.head ?? -1) + 2;
    const says = sentence(shown, choice, line, measured);
    setText(this.says, says);
    this.grid.setAttribute("aria-valuemax", String(nLayers * (nHeads + 1)));
    this.grid.setAttribute("aria-valuenow", String(at));
    this.grid.setAttribute("aria-valuetext", says);
    setText(this.help, help(shown, measured));
    this.legend.draw();
    this.#drawOver(over, measured);
    const { left, soon } = backOf(shown);
    this.back.hidden = left === 0 || soon;
    setText(this.back, left ? `Ask ${plural(left, "token")} after it` : "");
  }

  #drawOver(over, measured) {
    const { done, total } = measured ?? {};
    this.over.setAttribute("aria-pressed", String(over));
    const text = over && total ? `${done} of ${total}` : `Over ${MOST_TOKENS} tokens`;
    setText(this.over, text);
  }
}

function modes(onMode) {
  const set = el("fieldset", "seg");
  set.append(el("legend", "vh", "Colour shows"));
  for (const [value, [name]] of Object.entries(MODES)) {
    const choice = el("label", "", name);
    const input = Object.assign(el("input"), { type: "radio", name: "at-mode", value });
    input.checked = value === "weights";
    choice.prepend(input);
    set.append(choice);
  }
  set.addEventListener("change", ({ target }) => onMode(target.value));
  return set;
}

// ---- in words --------------------------------------------------------------------------------

const inPercent = (share) => `${percent(share)}\u00a0%`;
const quoted = (text) => `“${tokenLabel(text, "·")}”`;

/** The chosen cell: which heads, what they do, the words with most of the weight. */
function sentence({ nLayers, nHeads, nKvHeads, texts, position, ...rest }, choice, line, measured) {
  const before = line.slice(0, position + 1);
  const most = strongest(before, MOST_WORDS)
    .map((at) => `${quoted(texts[at])} ${inPercent(line[at])}`)
    .join(", ");
  const { layer, head } = choice;
  const word = quoted(texts[position]);
  if (layer === null) return `${word}, mean of all ${count(nLayers * nHeads)} heads: ${most}`;
  if (head === null) return `${word}, layer ${layer}, mean of ${nHeads} heads: ${most}`;
  const group = nKvHeads < nHeads ? `, KV head ${Math.floor((head * nKvHeads) / nHeads)}` : "";
  const i = layer * nHeads + head;
  const name = nameOf(rest.scores, i);
  const n = measured?.scores && measured.to - measured.from + 1;
  const said = n ? `on average over ${plural(n, "token")}` : "at this token";
  const kind = name ? ` ${KIND[name.place]} ${said}: ${inPercent(name.score)}.` : "";
  const bits = `${rest.bits[i].toFixed(2)}\u00a0bits`;
  return `${word}, layer ${layer}, head ${head}${group}: ${most}; ${bits}.${kind}`;
}

const KIND = {
  first: "A sink",
  previous: "A previous-token head",
  copy: "An induction head",
  self: "Looks at itself",
};

function help(shown, measured) {
  const { mode, scores, nLayers, nHeads } = shown;
  const [, what] = MODES[mode];
  if (measured?.message) return `Several tokens could not be asked: ${measured.message}`;
  const { message } = backOf(shown);
  if (message) return `What looked at it could not be asked: ${message}`;
  const over = measured?.scores
    ? ` Mean over tokens ${count(measured.from + 1)} to ${count(measured.to + 1)}.`
    : "";
  if (mode === "entropy") return what;
  const none = scores[mode] ? "" : "There is none at this token. ";
  if (mode !== "weights") return `${none}${what}${over}`;
  const n = namedBy(scores, nLayers * nHeads);
  const named = `first ${n.first}, previous ${n.previous}, copy ${n.copy}, self ${n.self}`;
  const least = `${100 * NAMED_FROM} % and ${NAMED_TIMES} times an even share`;
  return `${what} Named from ${least} on: ${named} of ${count(nLayers * nHeads)}.${over}`;
}

/** Where the numbers come from. */
export function sourceOf({ info, run, bits, nHeads }) {
  const time = info.ms === undefined ? "" : ` in ${duration(info.ms)}`;
  const asked = `Computed again from this run's tokens${time}`;
  if (!run) return `${asked}; the run measured no entropies at this token to compare with.`;
  const ofRun = (i) => run[Math.floor(i / nHeads)][i % nHeads];
  const apart = Math.max(...bits.map((own, i) => Math.abs(own - ofRun(i))));
  return apart <= SAME_BITS
    ? `${asked}; the entropies of all heads are those that the run measured.`
    : `${asked}; the run measured entropies up to ${apart.toFixed(2)} bits apart from these.`;
}
