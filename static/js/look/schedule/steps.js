// Steps of the engine (`RecentSteps` of gpu/inspection/requests.py): whose rows they had, and in words.

import { duration, plural } from "../../ui/format.js";

/** What a run had in a step, by the number that the engine gives it. @type {StepKind[]} */
const KINDS = ["prefill", "decode", "waiting", "preempted"];
const PART_FIELDS = 4;

/**
 * Parse an answer into steps {number, ms, parts}; a part is {run, kind, n, accepted}: `n` rows, of
 * which `accepted` were accepted drafts.
 *
 * @param {FrameAnswer} answer
 * @returns {EngineStep[]}
 */
export function readSteps({ arrays }) {
  const { numbers, ms, n_parts: counts, parts } = arrays;
  let at = 0;
  return Array.from(numbers.values, (number, i) => {
    const own = Array.from({ length: counts.values[i] }, () => {
      const [run, kind, n, accepted] = parts.values.subarray(at, (at += PART_FIELDS));
      return { run, kind: KINDS[kind], n, accepted };
    });
    return { number, ms: ms.values[i], parts: own };
  });
}

/**
 * Return the rows of the picture: the runs of this page that the steps have, then one for all
 * others: {name, isOther, runs}. `names`: run → name, of this page's runs.
 *
 * @param {EngineStep[]} steps
 * @param {Map<number, string>} names
 * @returns {StepRow[]}
 */
export function rowsOf(steps, names) {
  const seen = new Set(steps.flatMap(({ parts }) => parts.map(({ run }) => run)));
  const own = [...seen]
    .filter((run) => names.has(run))
    .map((run) => ({ name: names.get(run) ?? "", isOther: false, runs: new Set([run]) }));
  const others = [...seen].filter((run) => !names.has(run));
  return others.length ? [...own, { name: "others", isOther: true, runs: new Set(others) }] : own;
}

/**
 * Sum what the runs of a row had in a step: {prefill, decode, drafts, accepted, waiting, preempted}.
 *
 * @param {EngineStep} step
 * @param {StepRow} row
 */
export function partsOf({ parts }, { runs }) {
  const sum = { prefill: 0, decode: 0, drafts: 0, accepted: 0, waiting: 0, preempted: 0 };
  for (const { run, kind, n, accepted } of parts) {
    if (!runs.has(run)) continue;
    if (kind === "prefill") sum.prefill += n;
    else if (kind === "decode") {
      sum.decode += 1;
      sum.drafts += n - 1;
      sum.accepted += accepted;
    } else sum[kind] += 1;
  }
  return sum;
}

/**
 * "1 row, 3 drafts of which 2 accepted", "32 rows of the prompt", "waits"; "" if nothing.
 *
 * @param {StepParts} parts
 */
function describeParts({ prefill, decode, drafts, accepted, waiting, preempted }) {
  const words = [];
  if (prefill) words.push(`${plural(prefill, "row")} of a prompt`);
  if (decode) words.push(plural(decode, "token row"));
  if (drafts) words.push(`${plural(drafts, "draft")}, ${accepted} accepted`);
  if (waiting) words.push(waiting > 1 ? `${waiting} wait` : "waits");
  if (preempted) words.push(preempted > 1 ? `${preempted} preempted` : "preempted, waits");
  return words.join(", ");
}

/**
 * "step 214, 4.1 ms. this answer: 1 token row; others: 32 rows of a prompt"
 *
 * @param {EngineStep} step
 * @param {StepRow[]} rows
 */
export function describeStep(step, rows) {
  const words = rows
    .map((row) => [row.name, describeParts(partsOf(step, row))])
    .filter(([, what]) => what)
    .map(([name, what]) => `${name}: ${what}`);
  return `Step ${step.number}, ${duration(step.ms)}. ${words.join("; ")}.`;
}
