// Steps 8 and 9: scores become chances, and one token is drawn.

import { count } from "../ui/format.js";
import { BEFORE_FILTERS, DRAW } from "../look/filters/flow.js";
import { FILTERS, PENALTIES, SETTING_BY_NAME, isGreedy, writeNumber } from "../settings/sampling-settings.js";
import { plain, sentence, sentences, share, wordOf } from "./words.js";

/** Columns of the filters instrument (look/filters/figures.js). */
const LOGITS = 0;
const TEMPERATURE = BEFORE_FILTERS;
const FIRST_FILTER = BEFORE_FILTERS + 1;

/** Shares of one token by stage, of the engine's answer. @param {FrameAnswer} answer @param {number} id */
function rowOf({ arrays }, id) {
  const at = [...arrays.ids.values].indexOf(id);
  /** @param {string} name */
  const value = (name) => arrays[name].values[at];
  const names = ["raw", "penalised", "tempered", "low", "high"];
  return Object.fromEntries(names.map((name) => [name, value(name)]));
}

/** The most likely other token: {text, raw}, or null. @param {FrameAnswer} answer @param {number} id */
function rivalOf({ arrays, info }, id) {
  const ids = [...arrays.ids.values];
  const at = ids.findIndex((other) => other !== id);
  if (at < 0) return null;
  return { text: info.pieces?.[ids[at]] ?? "", raw: arrays.raw.values[at] };
}

/** @param {string} name @param {NamedSettings} settings */
const setting = (name, settings) => writeNumber(settings[name], SETTING_BY_NAME[name]);

/**
 * Heads of the columns `from` to `to` of the instrument, and their cells in the last row.
 *
 * @param {number} from
 * @param {number} to
 */
function columns(from, to) {
  const rows = document.querySelectorAll(".wf-heads, .wf-row:last-child");
  return [...rows].flatMap(({ children }) => [...children].slice(from + 1, to + 2));
}

/** @type {TourStep<FrameAnswer>} */
export const chances = {
  title: "Scores become chances",
  open: "filters",
  find: (walk) => walk.stages(),

  text({ token, word: name, hello, settings }, answer) {
    const { raw, penalised, tempered } = rowOf(answer, token.id);
    const rival = rivalOf(answer, token.id);
    const against = rival ? sentence`, ${wordOf(rival.text)} ${share(rival.raw)}` : [];
    return sentences(
      [
        ...sentence`After the last layer every one of the ${count(hello.model.vocab_size)} tokens `,
        ...sentence`gets a score, its logit; softmax makes shares of them that sum to 100\u00a0%.`,
      ],
      sentence`${name} gets ${share(raw)}${against}.`,
      penalised === raw
        ? null
        : sentence`${penaltiesOn(settings)} that ${share(penalised)}.`,
      warmth(settings, tempered),
    );
  },

  marks: () => [columns(LOGITS, TEMPERATURE)],
};

/** @param {NamedSettings} settings @param {number} tempered */
function warmth(settings, tempered) {
  const { temperature } = settings;
  if (isGreedy(settings))
    return sentence`Temperature ${temperature} takes the largest share, and nothing is left to chance.`;
  const value = setting("temperature", settings);
  if (temperature === 1) return sentence`Temperature ${value} leaves the shares as they are.`;
  const effect = temperature < 1 ? "favours what is likely already" : "gives the unlikely more";
  return sentence`Temperature ${value} ${plain(effect)}, and makes it ${share(tempered)}.`;
}

/**
 * The penalties that were on, as the beginning of a sentence: "The repeat penalty of 1.10 makes".
 * Without one it was a bias, which other clients of the engine can set.
 *
 * @param {NamedSettings} settings
 */
function penaltiesOn(settings) {
  const on = PENALTIES.filter(({ name, neutral }) => settings[name] !== neutral);
  if (!on.length) return plain("The bias of logits makes");
  const names = on.flatMap(({ name, label }, i) => {
    const joint = i === 0 ? "The " : i === on.length - 1 ? " and the " : ", the ";
    return sentence`${plain(joint)}${plain(label)} of ${setting(name, settings)}`;
  });
  return [...names, plain(on.length > 1 ? " make" : " makes")];
}

/** The filters that were on, as "top-k 40 and min-p 0.05". @param {NamedSettings} settings */
function filtersOn(settings) {
  const on = FILTERS.filter(({ name, neutral }) => settings[name] !== neutral);
  return on.flatMap(({ name, label }, i) => {
    const joint = i === 0 ? "" : i === on.length - 1 ? " and " : ", ";
    return sentence`${plain(joint)}${plain(label)} ${setting(name, settings)}`;
  });
}

/** @type {TourStep<FrameAnswer>} */
export const draw = {
  title: "Filters, then one draw",
  open: "filters",
  find: (walk) => walk.stages(),

  text({ token, word: name, hello, settings }, answer) {
    const all = count(hello.model.vocab_size);
    const { draw: number, greedy, chosen } = answer.info;
    if (greedy)
      return sentences(
        [
          ...sentence`With temperature 0 nothing is drawn: `,
          ...sentence`of ${all} tokens the likeliest is taken, ${name}.`,
        ],
        sentence`The filters have nothing to do.`,
      );
    const { n_kept: n } = answer.info.stages.at(-1);
    const on = filtersOn(settings);
    const left = on.length
      ? [
          ...sentence`Filters take away what is too unlikely: `,
          ...sentence`with ${on}, ${count(n)} of ${all} tokens ${plain(n === 1 ? "is" : "are")} left.`,
        ]
      : sentence`No filter is on, so all ${all} tokens may come.`;
    if (chosen !== token.id)
      return sentences(left, [
        ...sentence`Repeating this step, the engine drew a different token, `,
        ...sentence`so the draw of the run cannot be shown.`,
      ]);
    const { low, high } = rowOf(answer, token.id);
    if (number < low || number > high)
      return sentences(
        left,
        sentence`A watermark moves their shares, and one random number then chose ${name}: ${number.toFixed(3)}.`,
      );
    return sentences(
      left,
      [
        ...sentence`Their shares are laid end to end from 0 to 1, `,
        ...sentence`and one random number says where: ${number.toFixed(3)}.`,
      ],
      [
        ...sentence`It fell between ${low.toFixed(3)} and ${high.toFixed(3)}, `,
        ...sentence`and that stretch belongs to ${name}.`,
      ],
    );
  },

  marks: () => [columns(FIRST_FILTER, DRAW)],
};
