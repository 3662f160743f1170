// Checks across the fields of a replay file: events are in order, and sizes are those of the model.

import { BadReplay, integer, oneOf, refuse } from "./field-checks.js";

/**
 * Check a turn that the schema allows. `of`: the file's hello.
 *
 * @param {ReplayFile.ModelTurn | ReplayFile.UserTurn} turn
 * @param {ReplayFile.Hello} of
 * @param {string} path
 */
export function checkTurn(turn, of, path) {
  if (turn.role === "user") return;
  const { answers, shown } = turn;
  if (answers.length) integer(0, answers.length - 1)(shown, `${path}.shown`);
  answers.forEach(({ segments }, a) =>
    segments.forEach((each, s) => {
      const at = `${path}.answers[${a}].segments[${s}]`;
      if (!each.events === (each.text === undefined))
        throw new BadReplay(`${at} must have either events or a text.`);
      if (each.edited && each.events)
        throw new BadReplay(`${at} is edited, so it must have a text instead of events.`);
      if (each.branch) integer(0, a - 1)(each.branch.of, `${at}.branch.of`);
      if (!each.events) return;
      checkRun(each.events, of, at);
      checkTexts(each, `${at}.events[0].event.texts.length`);
    }),
  );
}

/**
 * Check that summaries stand for turns before them.
 *
 * @param {ReplayFile.Replay["turns"]} turns
 * @param {string} path
 */
export function checkSummaries(turns, path) {
  let nAsked = 0;
  turns.forEach((turn, i) => {
    if (turn.role === "user") nAsked += 1;
    if (turn.role === "user" || !turn.summary) return;
    const { summary, answers } = turn;
    integer(1, nAsked)(summary.covers, `${path}[${i}].summary.covers`);
    const { version = 0 } = summary.edited ?? {};
    integer(0, answers.length - 1)(version, `${path}[${i}].summary.edited.version`);
  });
}

/**
 * Check that the events of a generation are in an order that an engine sends.
 *
 * @param {ReplayFile.TimedEvent[]} events
 * @param {ReplayFile.Hello} of
 * @param {string} path
 */
function checkRun(events, of, path) {
  let [index, ended] = [0, false];
  const { prompt = [], texts = [] } = /** @type {Partial<ReplayFile.Accepted>} */ (events[0].event);
  integer(0, prompt.length)(texts.length, `${path}.events[0].event.texts.length`);
  events.forEach((each, i) => {
    const [at, now] = [`${path}.events[${i}].event`, each.event];
    if ((now.type === "accepted") !== (i === 0))
      throw new BadReplay(`${path}.events must begin with “accepted” and have it only there.`);
    if (ended) throw new BadReplay(`${at} comes after “done”, which must be last.`);
    ended = now.type === "done";
    if (now.type === "token") {
      if (now.index !== index) refuse(`${at}.index`, `${index}, its number`, now.index);
      index += 1;
    }
    if (now.type === "prefill") checkPrefill(now, prompt.length, at);
    const stats = "stats" in now ? [now.stats].flat() : [];
    for (const its of stats) if (its) checkStats(its, of.model, `${at}.stats`);
  });
}

/**
 * Check that a run that continues tokens says what each of them adds to the text.
 *
 * @param {ReplayFile.Segment} segment
 * @param {string} path
 */
function checkTexts({ request: { written }, branch, events = [] }, path) {
  const { prompt = [], texts = [] } = /** @type {Partial<ReplayFile.Accepted>} */ (events[0].event);
  if (written !== undefined) oneOf(written)(texts.length, path);
  if (branch) integer(branch.put.length, prompt.length)(texts.length, path);
}

/**
 * @param {ReplayFile.Prefill} prefill
 * @param {number} nPrompt
 * @param {string} path
 */
function checkPrefill({ done, total, reused, moved, stats: its }, nPrompt, path) {
  oneOf(nPrompt)(total, `${path}.total`);
  integer(0, total)(done, `${path}.done`);
  integer(0, done)(reused, `${path}.reused`);
  for (const { first, end } of moved ?? []) {
    integer(reused, nPrompt - 1)(first, `${path}.moved.first`);
    integer(first + 1, nPrompt - 1)(end, `${path}.moved.end`);
  }
  for (const { position } of its) integer(0, nPrompt - 1)(position, `${path}.stats.position`);
}

/**
 * @param {ReplayFile.TokenStats} stats
 * @param {ReplayFile.PageModelInfo} model
 * @param {string} path
 */
function checkStats({ layers, routes }, model, path) {
  const { n_layers: nLayers, n_heads: nHeads, n_experts: nExperts = 0 } = model;
  oneOf(nLayers)(layers.length, `${path}.layers.length`);
  for (const { entropy } of layers) oneOf(nHeads)(entropy.length, `${path}.layers.entropy.length`);
  for (const { layer, experts, gates } of routes ?? []) {
    integer(0, nLayers - 1)(layer, `${path}.routes.layer`);
    for (const expert of experts) integer(0, nExperts - 1)(expert, `${path}.routes.experts`);
    oneOf(experts.length)(gates.length, `${path}.routes.gates.length`);
  }
}
