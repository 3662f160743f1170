// Branches: answers that share the first tokens of another version, have some tokens replaced by
// the user, and are continued by a new run. No DOM access in this module.
//
// The run of a branch uses its parent's seed and continues its sequence of random numbers. A branch
// whose replacement equals the original token therefore generates the same text again.

import { countToken, ExpertUse } from "./expert-use.js";
import { probability, tokenLabel } from "../ui/format.js";
import { settingChanges } from "./setting-marks.js";

/**
 * The replacement that makes a run a branch; plain values, which survive a reload.
 *
 *   of     number of the version it branches from
 *   at     number of the first replaced token in the answer
 *   put    replacement tokens: {id, text, eos, logprob, rank, candidates}; logprob is the model's
 *          own, before temperature and filters; `candidates` is null for the first, which has
 *          those of the token it replaces
 *   was    the replaced token: {id, text, logprob}
 *   asked  request of the answer: {messages, prompt, continue_final}
 *
 * @typedef {Omit<ReplayFile.Branch, "asked"> & {asked: Asked}} Branch
 */

const NO_SAMPLING = { probability: NaN, n_kept: null, draw: null, mass: null, candidates: [] };
/** Token of which only the text is known. */
const EMPTY_TOKEN = {
  ...NO_SAMPLING,
  type: /** @type {const} */ ("token"),
  logprob: NaN,
  rank: null,
  times: null,
  stats: null,
  eos: false,
};

/**
 * Copy the parent's tokens up to the first replaced one. Token data is shared with the parent; only
 * their `segment` is the branch's own. False when the parent's tokens are not here.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 */
export function copyParentPrefix(answer, segment) {
  const { branch, parent } = segment;
  const replaced = branch && parent?.tokens[branch.at];
  if (!replaced || !parent) return false;
  const { at } = branch;
  const host = replaced.segment;
  const later = answer.segments.slice(answer.segments.indexOf(segment));
  answer.segments = [...parent.segments.slice(0, parent.segments.indexOf(host)), ...later];
  const before = parent.marks.filter(({ index }) => index <= at);
  answer.marks = before.map((mark) => reassigned(mark, host, segment));
  answer.tokens = parent.tokens.slice(0, at).map((token) => reassigned(token, host, segment));
  answer.edition += 1;
  Object.assign(segment, {
    base: host.base,
    nTokens: at - host.base,
    nGiven: at - host.base,
    prompt: host.prompt,
    promptIds: host.promptIds,
    promptStats: host.promptStats.slice(0, host.prompt.length),
    promptReused: host.promptReused,
    promptMoved: host.promptMoved,
    hasPrefix: true,
  });
  recount(answer);
  return true;
}

/** Count the experts of the answer's tokens afresh. @param {Answer} answer */
function recount(answer) {
  answer.use = new ExpertUse();
  for (const stats of answer.promptSegment.promptStats) answer.use.add(stats);
  for (const token of answer.tokens) countToken(answer, token);
}

/**
 * @template {{segment: Segment}} T
 * @param {T} thing
 * @param {Segment} host
 * @param {Segment} segment
 */
const reassigned = (thing, host, segment) =>
  thing.segment === host ? { ...thing, segment } : thing;

/**
 * Turn the text given to an accepted run into tokens of the answer.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 * @param {ToPage.Accepted} accepted
 */
export function applyBranchAccepted(answer, segment, { prompt, texts, params, capture }) {
  const first = prompt.length - texts.length;
  if (!segment.hasPrefix) {
    segment.prompt = prompt.slice(0, first);
    segment.promptIds = new Set(segment.prompt.map(({ id }) => id));
  }
  const nLead = texts.length - (segment.branch?.put.length ?? 0);
  texts.forEach((text, place) => {
    const known = answer.tokens[segment.base + place];
    if (known) return void (known.text = text);
    const fields = replacementFields(segment, place - nLead);
    const { id } = prompt[first + place];
    const token = /** @type {unknown} */ ({ ...EMPTY_TOKEN, id, text, ...fields });
    push(answer, segment, /** @type {Token} */ (token));
  });
  segment.nGiven = texts.length;
  markReplacement(answer, segment, texts.slice(nLead).join(""));
  markSettings(answer, segment, { ...params, capture, reach: segment.interventions });
}

/**
 * Return what is known of the k-th replacement token; k < 0 is a token before them.
 *
 * @param {Segment} segment
 * @param {number} k
 */
function replacementFields({ branch, parent }, k) {
  if (k < 0 || !branch) return { number: 0 };
  const { logprob, rank, candidates, eos } = branch.put[k];
  const replaced = parent?.tokens[branch.at];
  const own = { put: true, logprob, rank, eos, number: (replaced?.number ?? 0) + k };
  if (k > 0 || !replaced) return { ...own, candidates: candidates ?? [] };
  // It has the position of the replaced token: the same row gave the same distribution.
  const { n_kept, draw, mass, stats } = replaced;
  return { ...own, n_kept, draw, mass, stats, candidates: replaced.candidates };
}

/**
 * @param {Answer} answer
 * @param {Segment} segment
 * @param {Token} token
 */
function push(answer, segment, token) {
  const own = { ...token, segment, place: segment.nTokens };
  answer.tokens.push(own);
  countToken(answer, own);
  segment.nTokens += 1;
}

/**
 * Attach statistics of recomputed rows, each to the token it sampled.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 * @param {Stats} stats
 */
export function attachLateStats(answer, segment, stats) {
  const token = answer.tokens[segment.base + stats.position + 1 - segment.prompt.length];
  if (token?.segment !== segment || token.stats) return;
  token.stats = stats;
  countToken(answer, token);
}

// ---- marks -----------------------------------------------------------------------------------

/**
 * @param {Answer} answer
 * @param {Segment} segment
 * @param {string} text
 */
function markReplacement(answer, segment, text) {
  if (!segment.branch) return;
  const { put } = segment.branch;
  const index = segment.base + segment.nGiven - put.length;
  const own = { name: "forced", words: describeReplacement(segment.branch, text) };
  const last = answer.marks.at(-1);
  if (last?.index !== index) answer.marks.push({ segment, index, changes: [], shown: [own] });
  else answer.marks[answer.marks.length - 1] = { ...last, shown: [...last.shown, own] };
}

/**
 * "forced ‘blue’, was ‘yellow’ (p 0.31)"; `text` is that of all replacement tokens.
 *
 * @param {Branch} branch
 * @param {string} text
 */
function describeReplacement({ put, was }, text) {
  /**
   * @param {string} words
   * @param {boolean} [eos]
   */
  const quoted = (words, eos = false) =>
    eos ? "the end" : `‘${tokenLabel(words, "part of a character")}’`;
  const unchanged = was.id === put[0].id && put.length === 1;
  const before = unchanged ? "as drawn" : `was ${quoted(was.text, was.eos)}`;
  const isKnown = Number.isFinite(was.logprob ?? NaN);
  const chance = isKnown ? ` (p ${probability(Math.exp(Number(was.logprob)))})` : "";
  return `forced ${quoted(text, put[0].eos)}, ${before}${chance}`;
}

/**
 * Mark settings that differ from those of the replaced token; they act on what the run samples.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 * @param {NamedSettings} params
 */
function markSettings(answer, segment, params) {
  const { parent, branch } = segment;
  const replaced = branch && parent?.tokens[branch.at];
  if (!segment.hasPrefix || !replaced || !parent) return;
  const changes = settingChanges(parent.settingsAt(replaced), params);
  const index = segment.base + segment.nGiven;
  if (changes.length) answer.marks.push({ segment, index, changes, shown: changes });
}
