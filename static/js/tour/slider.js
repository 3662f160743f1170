// Step 12: the text waits half written until a slider is moved.

import { lendPace } from "../chat/pace.js";
import { whyNotReplaceable } from "../chat/replace-token-run.js";
import { differences } from "../settings/sampling-settings.js";
import { byId, one } from "../ui/dom.js";
import { state } from "../state.js";
import { chooseWait } from "./choose.js";
import { plain, sentence, sentences, wordOf } from "./words.js";

/** Tokens a second once a slider was moved: slow enough to read each one and its candidates. */
const AFTER_A_MOVE = 2;
const PAUSED = 0;

/**
 * `index`: number of the token behind which the text is to wait.
 *
 * @type {TourStep<{wasWriting: boolean, why: string, index: number, word: SentencePart}>}
 */
export const sliderStep = {
  title: "Move a slider",
  open: null,
  sheet: "sampling",
  follows: true,

  find(walk) {
    const { tokens } = walk.newest;
    const index = chooseWait(tokens, walk.index);
    return {
      wasWriting: state.active !== null,
      why: state.active ? "" : whyNotReplaceable(walk.newest, index),
      index,
      word: wordOf(tokens[index].text),
    };
  },
  at: () => ({ index: null, row: null }),

  /** Have the text wait; it goes on slowly once a setting is another, at the chosen pace at the end. */
  enter(walk, { why, index }) {
    if (why) return undefined;
    const before = { ...state.settings };
    const pace = lendPace(PAUSED);
    walk.writeOn(index);
    const end = new AbortController();
    const goOn = () => {
      if (!differences(before, state.settings).length) return;
      end.abort();
      pace.change(AFTER_A_MOVE);
    };
    // A slider tells of a change when it is let go; until then only the candidates follow it.
    for (const type of ["change", "click"])
      one(document, ".sampling").addEventListener(type, goOn, { signal: end.signal });
    return () => {
      end.abort();
      pace.end();
    };
  },

  text(_walk, { why, wasWriting, word }) {
    if (why) return sentence`The text cannot be written on here: ${plain(why)}`;
    return sentences(
      wasWriting
        ? sentence`The text waits where it is.`
        : sentence`The text is written once more, and waits behind ${word}.`,
      sentence`Next token shows what may come now; nothing is drawn yet.`,
      sentence`Move a slider, such as temperature: the candidates follow it. Let go, and the text goes on
        at ${`${AFTER_A_MOVE} tokens`} a second, so that every move can be seen.`,
    );
  },

  marks: () => [[byId("presets"), byId("sliders")], [byId("cands")]],
};
