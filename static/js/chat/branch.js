// A branch of an answer: it begins with tokens of another one, has some put in by a person, and a
// run goes on from there. Nothing here touches the page.
//
// All runs along a branch draw with one seed, and each goes on in its random numbers where the
// tokens before it end. So a branch in which nothing else was put in writes the same text again.

import { countToken, ExpertUse } from "./expertuse.js";
import { probability, tokenLabel } from "./format.js";
import { settingChanges } from "./marks.js";

/**
 * What makes a generation a branch; plain values, which survive a reload.
 *
 *   of     the version it parted from, by its number
 *   at     number of the first token that was put in, in the answer
 *   put    the tokens that were put in: {id, text, eos, logprob, rank, candidates}; logprob is the
 *          model's own, before temperature and filters; `candidates` is null for the first, which
 *          has those of the token it replaced
 *   was    the token that was replaced: {id, text, logprob}
 *   asked  what the answer was asked for: {messages, prompt, continue_final}
 *
 * @typedef {{of: number, at: number, put: object[], was: object, asked: object}} Branch
 */

const NOTHING = { probability: NaN, n_kept: null, draw: null, mass: null, candidates: [] };
/** A token of which only its text is known. */
const bare = { ...NOTHING, type: "token", logprob: NaN, rank: null, times: null, stats: null, eos: false };

/**
 * Let an answer begin as its parent does, up to the first token that was put in. The parent's
 * tokens are shared; only to which segment they belong is the branch's own. False when the parent's
 * tokens are not here.
 */
export function takeLead(answer, segment) {
  const { at } = segment.branch;
  const replaced = segment.parent?.tokens[at];
  if (!replaced) return false;
  const { parent } = segment;
  const host = replaced.segment;
  const later = answer.segments.slice(answer.segments.indexOf(segment));
  answer.segments = [...parent.segments.slice(0, parent.segments.indexOf(host)), ...later];
  answer.marks = parent.marks.filter(({ index }) => index <= at).map((mark) => owned(mark, host, segment));
  answer.tokens = parent.tokens.slice(0, at).map((token) => owned(token, host, segment));
  answer.edition += 1;
  Object.assign(segment, {
    base: host.base,
    nTokens: at - host.base,
    given: at - host.base,
    prompt: host.prompt,
    promptIds: host.promptIds,
    promptStats: host.promptStats.slice(0, host.prompt.length),
    promptReused: host.promptReused,
    hasLead: true,
  });
  recount(answer);
  return true;
}

/** Its tokens are others now. */
function recount(answer) {
  answer.use = new ExpertUse();
  for (const stats of answer.segments[0].promptStats) answer.use.take(stats);
  for (const token of answer.tokens) countToken(answer, token);
}

const owned = (thing, host, segment) => (thing.segment === host ? { ...thing, segment } : thing);

/** The run is accepted: what it was given as text becomes tokens of the answer. */
export function takeWritten(answer, segment, { prompt, texts, params, capture }) {
  const first = prompt.length - texts.length;
  if (!segment.hasLead) {
    segment.prompt = prompt.slice(0, first);
    segment.promptIds = new Set(segment.prompt.map(({ id }) => id));
  }
  const nLead = texts.length - segment.branch.put.length;
  texts.forEach((text, place) => {
    const known = answer.tokens[segment.base + place];
    if (known) known.text = text;
    else push(answer, segment, { ...bare, id: prompt[first + place].id, text, ...putAt(segment, place - nLead) });
  });
  segment.given = texts.length;
  markPut(answer, segment, texts.slice(nLead).join(""));
  markSettings(answer, segment, { ...params, capture, reach: segment.reach });
}

/** What is known of the k-th token that was put in; nothing of one before them. */
function putAt({ branch, parent }, k) {
  if (k < 0) return { number: 0 };
  const { logprob, rank, candidates, eos } = branch.put[k];
  const replaced = parent?.tokens[branch.at];
  const own = { put: true, logprob, rank, eos, number: (replaced?.number ?? 0) + k };
  if (k > 0 || !replaced) return { ...own, candidates: candidates ?? [] };
  // It stands where the replaced one stood: the same row gave the same distribution.
  const { n_kept, draw, mass, stats } = replaced;
  return { ...own, n_kept, draw, mass, stats, candidates: replaced.candidates };
}

function push(answer, segment, token) {
  const own = { ...token, segment, place: segment.nTokens };
  answer.tokens.push(own);
  countToken(answer, own);
  segment.nTokens += 1;
}

/** Statistics of the prompt's rows that came after all: each belongs to the token it chose. */
export function takeStats(answer, segment, stats) {
  const token = answer.tokens[segment.base + stats.position + 1 - segment.prompt.length];
  if (token?.segment !== segment || token.stats) return;
  token.stats = stats;
  countToken(answer, token);
}

// ---- marks -----------------------------------------------------------------------------------

function markPut(answer, segment, text) {
  const { put } = segment.branch;
  const index = segment.base + segment.given - put.length;
  const own = { name: "forced", words: describePut(segment.branch, text) };
  const last = answer.marks.at(-1);
  if (last?.index !== index) answer.marks.push({ segment, index, changes: [], told: [own] });
  else answer.marks[answer.marks.length - 1] = { ...last, told: [...last.told, own] };
}

/** "forced ‘blue’, was ‘yellow’ (p 0.31)"; `text`: of what was put in. */
function describePut({ put, was }, text) {
  const quoted = (words, eos) => (eos ? "the end" : `‘${tokenLabel(words, "part of a character")}’`);
  const same = was.id === put[0].id && put.length === 1;
  const before = same ? "as drawn" : `was ${quoted(was.text, was.eos)}`;
  return `forced ${quoted(text, put[0].eos)}, ${before} (p ${probability(Math.exp(was.logprob))})`;
}

/** The page's settings act on what the run draws; the tokens before were drawn with those of theirs. */
function markSettings(answer, segment, params) {
  const replaced = segment.parent?.tokens[segment.branch.at];
  if (!segment.hasLead || !replaced) return;
  const changes = settingChanges(segment.parent.settingsAt(replaced), params);
  const index = segment.base + segment.given;
  if (changes.length) answer.marks.push({ segment, index, changes, told: changes });
}
