// The tour: thirteen steps that follow one token. A step, here and in lessons, is:
//
//   title
//   open    name of the instrument to open; null: none
//   sheet   on a phone: the panel opened over the transcript
//   follows the text is written on, so that another version of the answer may be shown
//   metric  the metric of the core sample
//   find(walk)          queries the engine; optional
//   at(walk, found)     the focus {index, row}; default: the followed token
//   enter(walk, found)  sets up the instrument; may return a function that undoes it
//   text(walk, found)   its sentences (words.js)
//   exercise(walk, found)  a question to the reader (exercise.js); optional
//   marks(walk, found)  elements to outline: a list of groups

import { cacheStep, costStep, tryStep } from "./engine.js";
import { attentionStep, headStep, lensStep, mlpStep, residualStep } from "./layers.js";
import { embeddingStep, tokensStep } from "./reading.js";
import { chances, draw } from "./choosing.js";
import { sliderStep } from "./slider.js";

/** @type {TourStep<any>[]} */
const STEPS = [
  tokensStep,
  embeddingStep,
  residualStep,
  attentionStep,
  headStep,
  mlpStep,
  lensStep,
  chances,
  draw,
  cacheStep,
  costStep,
  sliderStep,
  tryStep,
];

/** @type {Route} */
export const TOUR = {
  kind: "tour",
  title: "",
  steps: STEPS,
  // Any model can answer or continue these.
  prompts: {
    chat: "Tell me a story about a fox who finds a lantern",
    completion: "Once upon a time, a fox found a lantern in the wood.",
  },
  nTokens: 64, // suffice, and are quick to generate on any device
  pace: null, // a chosen one may be slow, or by step
  needsOwnRun: false,
};
