// Last tokens of the answer, because the panel covers the transcript, and a comparison of versions.

import { el, setText, targetOf } from "../../ui/dom.js";
import { plural, tokenLabel } from "../../ui/format.js";
import { describeChange } from "../../settings/sampling-settings.js";
import { seedOf } from "../../chat/rerun.js";
import { lastTurn, shownAnswer, state } from "../../state.js";
import { focused, pin } from "../../view.js";

/** Maximum number of tokens, more than fit in the line. */
const MAX_TOKENS = 80;

export class TextEnd {
  /** @param {HTMLElement} root */
  constructor(root) {
    const line = root.appendChild(el("div", "rc-end"));
    this.text = line.appendChild(el("p", "rc-end-text"));
    this.comparison = line.appendChild(el("p", "ellipsis rc-comparison optional"));
    /** @type {unknown[]} */
    this.drawn = [];
    this.text.addEventListener("click", (event) => {
      const { i } = targetOf(event).dataset;
      if (i !== undefined) pin(Number(i));
    });
  }

  /** @param {Focus} focus */
  draw({ answer }) {
    const tokens = answer?.tokens ?? [];
    const shown = JSON.stringify(answer?.marks.at(-1)?.shown);
    const of = [answer, answer?.edition, tokens.length, shown, focused()];
    if (of.some((part, i) => part !== this.drawn[i])) {
      this.drawn = of;
      this.text.replaceChildren(...(answer ? endOf(answer) : [""]));
    }
    setText(this.comparison, comparisonText(lastTurn()));
  }
}

/** @param {Answer} answer */
function endOf({ tokens, marks }) {
  const first = Math.max(0, tokens.length - MAX_TOKENS);
  const shown = new Map(marks.map((mark) => [mark.index, mark.shown]));
  return tokens.slice(first).flatMap(({ text, eos }, i) => {
    const index = first + i;
    const plain = eos ? " ∎" : text.replace(/\n+/g, " ↵ ");
    const word = el("span", index === focused() ? "rc-tok on" : "rc-tok", plain);
    word.dataset.i = String(index);
    const changes = shown.get(index);
    if (!changes?.length) return [word];
    return [el("span", "mark-change", changes.map(describeChange).join(", ")), word];
  });
}

// ---- comparison with the same seed -------------------------------------------------------------

/**
 * Compare the shown version with an earlier one of the same seed, preferably one without
 * interventions: {of, same, parted, whole}, or null. `same`: number of equal tokens before
 * `parted`, the first different pair; `whole`: are both equally long?
 *
 * @param {ModelTurn | null} turn
 */
function compareWithSameSeed(turn) {
  const shown = shownAnswer(turn);
  if (!turn || !shown?.tokens.length) return null;
  const seed = seedOf(shown);
  const earlier = turn.answers
    .map((answer, i) => ({ answer, i }))
    .filter(({ answer, i }) => i < turn.shown && answer.tokens.length)
    .filter(({ answer }) => seedOf(answer) === seed);
  /** @param {Answer} answer */
  const untouched = ({ segments }) =>
    segments.every(({ interventionSpans }) => !interventionSpans.length);
  const alone = earlier.filter(({ answer }) => untouched(answer));
  const found = alone.at(-1) ?? earlier.at(-1);
  if (!found) return null;
  const [a, b] = [shown.tokens, found.answer.tokens];
  const parts = a.findIndex(({ id }, i) => b[i] && b[i].id !== id);
  const n = parts < 0 ? Math.min(a.length, b.length) : parts;
  const parted = parts < 0 ? null : { here: a[parts], there: b[parts] };
  return { of: found.i, same: n, parted, whole: a.length === b.length };
}

/** @param {ModelTurn | null} turn */
function comparisonText(turn) {
  const comparison = state.replay ? null : compareWithSameSeed(turn);
  if (!comparison) return "";
  const other = `version ${comparison.of + 1}`;
  /** @param {Token} token */
  const word = ({ text, eos }) =>
    eos ? "the end" : `“${tokenLabel(text, "part of a character")}”`;
  if (comparison.parted) {
    const { here, there } = comparison.parted;
    if (!comparison.same)
      return `Differs from ${other} from the first token: ${word(here)}, there ${word(there)}`;
    const n = plural(comparison.same, "token");
    return `Same as ${other} for ${n}, then ${word(here)}, there ${word(there)}`;
  }
  const n = plural(comparison.same, "token");
  if (state.active) return `Same ${n} as ${other} so far`;
  return comparison.whole ? `Same ${n} as ${other}` : `First ${n} are the same as in ${other}`;
}
