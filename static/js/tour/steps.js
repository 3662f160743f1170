// The thirteen steps of the tour, in order. A step is:
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
//   marks(walk, found)  elements to outline: a list of groups

import { cacheStep, costStep, tryStep } from "./engine.js";
import { attentionStep, headStep, lensStep, mlpStep, residualStep } from "./layers.js";
import { embeddingStep, tokensStep } from "./reading.js";
import { chances, draw } from "./choosing.js";
import { sliderStep } from "./slider.js";

/** @type {TourStep<any>[]} */
export const STEPS = [
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
