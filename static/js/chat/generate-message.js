// The `generate` message of a run, made of a prompt, settings and interventions.

import { continuedSpans, isEmpty } from "../interventions/interventions.js";
import { toWire } from "../interventions/intervention-wire.js";
import { newId } from "../net/new-id.js";
import { encode } from "../net/socket.js";
import { drawSeed } from "../settings/sampling-settings.js";
import { state } from "../state.js";
import { cacheReuseField } from "./cache-reuse.js";
import { paceField } from "./pace.js";
import { truncationField } from "./truncation.js";

/**
 * Return the message that starts a run of `request` ({messages}, {prompt} or {ids, written, …}), at
 * the page's pace if it has none.
 *
 *   params         sampling settings; a seed of "" is drawn
 *   capture        measure every layer
 *   interventions  a `Setting` of interventions/intervention-wire.js
 *   before         {ran, from, last} of a continued text, see `continuedSpans`; null: none
 *
 * @param {Partial<RunRequest>} request
 * @param {{params: NamedSettings, capture: boolean, interventions: Setting, before?: Before | null}} options
 * @returns {RunRequest}
 */
export function newMessage(request, { params, capture, interventions, before = null }) {
  const acting = toWire(interventions);
  return {
    type: "generate",
    id: newId(),
    ...paceField(),
    ...request,
    ...truncationField(request),
    ...cacheReuseField(),
    params: { ...params, seed: params.seed === "" ? drawSeed() : params.seed },
    capture,
    ...(isEmpty(acting) ? {} : { reach: acting }),
    ...(before && continuedSpans(before.ran, before.from, before.last, acting)),
  };
}

/**
 * Return the problem of a message that is longer than the server accepts, or null: also when there
 * is no server to say what it accepts.
 *
 * @param {PageMessage} message
 */
export function whyTooLong(message) {
  if (!state.hello) return null;
  const limit = state.hello.limits.message_bytes;
  const size = new TextEncoder().encode(encode(message)).length;
  if (size <= limit) return null;
  return {
    code: "too_long",
    message:
      `The request is ${kilobytes(size)} long, but the server accepts ${kilobytes(limit)}. ` +
      "Shorten the prompt or start a new chat.",
  };
}

/** @param {number} n */
const kilobytes = (n) => `${Math.ceil(n / 1024)} KB`;

/**
 * Add the run of `message`, which is about to be sent, to an answer; `branch` as in `begin`.
 *
 * @param {Answer} answer
 * @param {RunRequest} message
 * @param {Branch | null} [branch]
 * @param {Answer | null} [parent]
 */
export function beginSegment(answer, message, branch = null, parent = null) {
  const segment = answer.begin(message.id ?? "", message, branch, parent);
  return Object.assign(segment, {
    sentAt: performance.now(),
    model: state.hello?.model.name ?? null,
    here: true,
  });
}
