// The routes of the lessons: prompts and steps of each.

import { attentionStep, headStep, lensStep, mlpStep, residualStep } from "../tour/layers.js";
import { cacheStep, costStep } from "../tour/engine.js";
import { chances, draw } from "../tour/choosing.js";
import { embeddingStep, tokensStep } from "../tour/reading.js";
import { sliderStep } from "../tour/slider.js";
import { LESSONS } from "./list.js";
import { attentionExercise, scoreStep } from "./attention.js";
import { decoderExercise, maskStep, onePassStep } from "./decoder.js";
import { keptExercise, sharedHeadsStep, withoutCacheStep } from "./kv-cache.js";
import { layersExercise } from "./layers.js";
import { bitsExercise, countStep, partsStep } from "./memory.js";
import { filtersExercise } from "./next-token.js";
import { bandwidthExercise, bytesStep } from "./speed.js";
import { decodeStep, prefillExercise, prefillStep } from "./first-token.js";
import { frameStep, lengthStep, tokensExercise } from "./tokens.js";
import { lookupStep, vectorsExercise } from "./vectors.js";

/** A text that any model can continue. */
const BEGUN = "A fox found a lantern in the wood. She took it home and";
const STORY = { chat: "Tell me a story about a fox who finds a lantern", completion: BEGUN };
/** More tokens than a step of decoding has rows, so that reading and writing can be told apart. */
const LONG =
  "Once upon a time, there was a little fox named Mia. She lived in the wood with her mother. One day, " +
  "Mia found a lantern under an old tree. It was small and red, and it did not shine. Mia took it home. " +
  "“Can you mend it?” she asked her mother. Her mother looked at the lantern for a long time. Then she " +
  "said:";

/** @type {Record<string, {prompts: Route["prompts"], steps: TourStep<any>[]}>} */
const ROUTES = {
  tokens: { prompts: STORY, steps: [tokensStep, frameStep, lengthStep, tokensExercise] },
  vectors: { prompts: { completion: BEGUN }, steps: [embeddingStep, lookupStep, residualStep, vectorsExercise] },
  attention: {
    prompts: { completion: BEGUN },
    steps: [scoreStep, attentionStep, headStep, attentionExercise],
  },
  layers: { prompts: { completion: BEGUN }, steps: [residualStep, mlpStep, lensStep, layersExercise] },
  "next-token": { prompts: STORY, steps: [chances, draw, sliderStep, filtersExercise] },
  "first-token": { prompts: { completion: LONG }, steps: [prefillStep, decodeStep, prefillExercise] },
  "kv-cache": {
    prompts: { completion: LONG },
    steps: [cacheStep, withoutCacheStep, sharedHeadsStep, keptExercise],
  },
  speed: { prompts: STORY, steps: [bytesStep, costStep, bandwidthExercise] },
  memory: { prompts: STORY, steps: [countStep, partsStep, bitsExercise] },
  decoder: { prompts: { completion: BEGUN }, steps: [maskStep, onePassStep, cacheStep, decoderExercise] },
};

/** Tokens per second, slow enough to read along; lessons that measure time write at full speed. */
const PACE = 10;
const FULL_SPEED = new Set(["first-token", "speed"]);
const N_TOKENS = 24;

/** Return the route of a lesson. @param {string} name @returns {Route} */
export function routeOf(name) {
  const { question: title } = LESSONS.find((lesson) => lesson.name === name) ?? LESSONS[0];
  const pace = FULL_SPEED.has(name) ? null : PACE;
  return { kind: "lesson", title, ...ROUTES[name], nTokens: N_TOKENS, pace, needsOwnRun: true };
}
