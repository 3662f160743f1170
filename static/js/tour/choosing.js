// Steps 8 and 9: scores become chances, and one token is drawn.

import { count } from "../format.js";
import { SLIDERS, writeNumber } from "../params.js";
import { plain, say, sentences, share, wordOf } from "./words.js";

/** Columns of the filters instrument (look/filtersfigures.js). */
const LOGITS = 0;
const TEMPERATURE = 2;
const FILTERS = 3;
const DRAW = 6;

/** What the engine answered about one token: its shares by stage. */
function rowOf({ arrays }, id) {
  const at = [...arrays.ids.values].indexOf(id);
  const value = (name) => arrays[name].values[at];
  const names = ["raw", "penalised", "tempered", "low", "high"];
  return Object.fromEntries(names.map((name) => [name, value(name)]));
}

/** The likeliest token beside this one: {text, raw}, or null. */
function rivalOf({ arrays, info }, id) {
  const ids = [...arrays.ids.values];
  const at = ids.findIndex((other) => other !== id);
  if (at < 0) return null;
  return { text: info.pieces?.[ids[at]] ?? "", raw: arrays.raw.values[at] };
}

const stage = ({ info }, name) => info.stages.find((one) => one.name === name);
const setting = (name, settings) =>
  writeNumber(settings[name], SLIDERS.find((slider) => slider.name === name));

/** Columns `from` … `to` of the instrument: their heads, and their cells in the last row. */
function columns(from, to) {
  const rows = document.querySelectorAll(".wf-heads, .wf-row:last-child");
  return [...rows].flatMap(({ children }) => [...children].slice(from + 1, to + 2));
}

export const chances = {
  title: "Scores become chances",
  open: "filters",
  find: (walk) => walk.stages(),

  say({ token, word: name, hello, settings }, answer) {
    const { raw, penalised, tempered } = rowOf(answer, token.id);
    const rival = rivalOf(answer, token.id);
    const against = rival ? say`, ${wordOf(rival.text)} ${share(rival.raw)}` : [];
    return sentences(
      say`After the last layer every one of the ${count(hello.model.vocab_size)} tokens gets a score, its logit; softmax makes shares of them that sum to 100\u00a0%.`,
      say`${name} gets ${share(raw)}${against}.`,
      penalised === raw
        ? null
        : say`The repetition penalty of ${setting("repetition_penalty", settings)} makes that ${share(penalised)}.`,
      warmth(settings, tempered),
    );
  },

  marks: () => [columns(LOGITS, TEMPERATURE)],
};

function warmth(settings, tempered) {
  const { temperature } = settings;
  if (temperature === 0) return say`Temperature ${0} takes the largest share, and nothing is left to chance.`;
  const value = setting("temperature", settings);
  if (temperature === 1) return say`Temperature ${value} leaves the shares as they are.`;
  return temperature < 1
    ? say`Temperature ${value} favours what is likely already, and makes it ${share(tempered)}.`
    : say`Temperature ${value} gives the unlikely more, and makes it ${share(tempered)}.`;
}

/** The filters that were on, as "top-k 40 and min-p 0.05". */
function filtersOn(settings) {
  const on = SLIDERS.filter(
    ({ name, off }) => ["top_k", "top_p", "min_p"].includes(name) && settings[name] !== off,
  );
  return on.flatMap(({ name, label }, i) => [
    ...say`${plain(i === 0 ? "" : i === on.length - 1 ? " and " : ", ")}${plain(label)} ${setting(name, settings)}`,
  ]);
}

export const draw = {
  title: "Filters, then one draw",
  open: "filters",
  find: (walk) => walk.stages(),

  say({ token, word: name, hello, settings }, answer) {
    const all = count(hello.model.vocab_size);
    const { draw: number, greedy, chosen } = answer.info;
    if (greedy)
      return say`With temperature 0 nothing is drawn: of ${all} tokens the likeliest is taken, ${name}. The filters have nothing to do.`;
    const { n_kept: n } = stage(answer, "min_p");
    const on = filtersOn(settings);
    const left = on.length
      ? say`Filters take away what is too unlikely: with ${on}, ${count(n)} of ${all} tokens are left.`
      : say`No filter is on, so all ${all} tokens may come.`;
    if (chosen !== token.id)
      return sentences(left, say`Asked again, the engine draws another token than the run did, so the draw cannot be told.`);
    const { low, high } = rowOf(answer, token.id);
    return sentences(
      left,
      say`Their shares are laid end to end from 0 to 1, and one random number says where: ${number.toFixed(3)}.`,
      say`It fell between ${low.toFixed(3)} and ${high.toFixed(3)}, and that stretch belongs to ${name}.`,
    );
  },

  marks: () => [columns(FILTERS, DRAW)],
};
