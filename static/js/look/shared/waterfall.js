// The engine's question about the stages in which settings turned the logits of a token into the
// distribution that it was drawn from (`Waterfall` of gpu/inspection/requests.py).

import { grammarAfter } from "../../turns/answer-rules.js";
import { spansUpTo } from "../../interventions/interventions.js";
import { SETTING_BY_NAME, SLIDERS, WATERMARK } from "../../settings/sampling-settings.js";
import { sequenceOf } from "./context.js";

/** The settings that decide how a token is sampled. @param {NamedSettings} all */
export const samplingOf = (all) =>
  Object.fromEntries([...SLIDERS, ...WATERMARK].map(({ name }) => [name, all[name]]));

/** Seed of a run as a string of digits: numbers have 53 bits here, and seeds 64. @param {Segment} segment */
export const seedOf = ({ request, params }) => String(request?.params.seed ?? params?.seed);

/**
 * Return the question about a token {answer, token, index} under `settings`. `more`: its other
 * fields.
 *
 * @param {Place & {token: Token}} place
 * @param {Record<string, number>} settings
 * @param {Pick<FromPage.Waterfall, "top" | "also">} more
 * @returns {WaterfallQuestion}
 */
export function waterfallOf(place, settings, more) {
  const { segment, ids, position } = sequenceOf(place);
  const { token } = place;
  return {
    kind: "waterfall",
    ids: ids.slice(0, position),
    position: position - 1,
    ...spansUpTo(segment, position),
    ...grammarAfter(segment.grammar, token.index),
    params: { ...settings, ...limitOf(place), seed: seedOf(segment) },
    index: token.number ?? token.index,
    ...more,
  };
}

/**
 * Return {max_tokens} of a run under a grammar, which goes by it; {} without one. The first token counts
 * as its number says.
 *
 * @param {Place & {token: Token}} place
 */
function limitOf({ answer, token }) {
  if (!answer || !token.segment.grammar) return {};
  const { index, number = index } = token;
  const { max_tokens: most } = answer.settingsAt(token);
  return { max_tokens: Math.min(most + number - index, SETTING_BY_NAME.max_tokens.max) };
}
