// The end of the text: the panel covers the transcript, and what is changed here is the text.

import { el, setText } from "../dom.js";
import { plural, tokenLabel } from "../format.js";
import { describeChange } from "../params.js";
import { seedOf } from "../rewrite.js";
import { lastTurn, shownAnswer, state } from "../state.js";
import { focused, pin } from "../view.js";

/** More tokens than fit in the line. */
const MOST_TOKENS = 80;

export class ReachText {
  constructor(root) {
    const line = root.appendChild(el("div", "rc-end"));
    this.text = line.appendChild(el("p", "rc-end-text"));
    this.twin = line.appendChild(el("p", "rc-twin"));
    this.drawn = [];
    this.text.addEventListener("click", ({ target }) => {
      if (target.dataset.i !== undefined) pin(Number(target.dataset.i));
    });
  }

  draw({ answer }) {
    const tokens = answer?.tokens ?? [];
    const told = JSON.stringify(answer?.marks.at(-1)?.told);
    const of = [answer, answer?.edition, tokens.length, told, focused()];
    if (of.some((part, i) => part !== this.drawn[i])) {
      this.drawn = of;
      this.text.replaceChildren(...(answer ? endOf(answer) : [""]));
    }
    setText(this.twin, twinWords(lastTurn()));
  }
}

function endOf({ tokens, marks }) {
  const first = Math.max(0, tokens.length - MOST_TOKENS);
  const told = new Map(marks.map((mark) => [mark.index, mark.told]));
  return tokens.slice(first).flatMap(({ text, eos }, i) => {
    const index = first + i;
    const shown = eos ? " ∎" : text.replace(/\n+/g, " ↵ ");
    const word = el("span", index === focused() ? "rc-tok on" : "rc-tok", shown);
    word.dataset.i = index;
    const changes = told.get(index);
    if (!changes?.length) return [word];
    return [el("span", "mark-change", changes.map(describeChange).join(", ")), word];
  });
}

// ---- the same seed again -----------------------------------------------------------------------

/**
 * How the version on show compares with an earlier one of its seed, one that was left alone if
 * there is one: {of, same, parted, whole}, or null. `same`: how many tokens before the first that
 * is not, `parted`; `whole`: are they equally long?
 */
export function twinOf(turn) {
  const shown = shownAnswer(turn);
  if (!shown?.tokens.length) return null;
  const seed = seedOf(shown);
  const earlier = turn.answers
    .map((answer, i) => ({ answer, i }))
    .filter(({ answer, i }) => i < turn.shown && answer.tokens.length)
    .filter(({ answer }) => seedOf(answer) === seed);
  const untouched = ({ segments }) => segments.every(({ reached }) => !reached.length);
  const alone = earlier.filter(({ answer }) => untouched(answer));
  const found = alone.at(-1) ?? earlier.at(-1);
  if (!found) return null;
  const [a, b] = [shown.tokens, found.answer.tokens];
  const parts = a.findIndex(({ id }, i) => b[i] && b[i].id !== id);
  const n = parts < 0 ? Math.min(a.length, b.length) : parts;
  const parted = parts < 0 ? null : { here: a[parts], there: b[parts] };
  return { of: found.i, same: n, parted, whole: a.length === b.length };
}

function twinWords(turn) {
  const twin = state.replay ? null : twinOf(turn);
  if (!twin) return "";
  const other = `version ${twin.of + 1}`;
  const word = ({ text, eos }) => (eos ? "the end" : `“${tokenLabel(text, "part of a character")}”`);
  if (twin.parted) {
    const { here, there } = twin.parted;
    if (!twin.same) return `Parts from ${other} at once: ${word(here)}, there ${word(there)}`;
    return `As ${other} for ${plural(twin.same, "token")}, then ${word(here)}, there ${word(there)}`;
  }
  const n = plural(twin.same, "token");
  if (state.active) return `So far the ${n} of ${other}`;
  return twin.whole ? `The same ${n} as ${other}` : `Its first ${n} are those of ${other}`;
}
