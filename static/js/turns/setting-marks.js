// Marks where settings changed within an answer. No DOM access in this module.

import { differences } from "../settings/sampling-settings.js";
import { sameInterventions, changedKeys } from "../interventions/interventions.js";

/** Marks of one drag (same settings, few tokens apart) share one label, at the last of them. */
const SAME_DRAG_TOKENS = 12;
/** @param {Change[]} changes */
const names = (changes) =>
  changes.map(({ name, from, to }) => (name === "reach" ? changedKeys(from, to) : name)).join();

/**
 * Return the settings (with `capture` and `reach`) that differ: [{name, from, to}].
 *
 * @param {NamedSettings} before
 * @param {NamedSettings} after
 */
export function settingChanges(before, after) {
  const changes = differences(before, after);
  if (before.capture !== after.capture)
    changes.push({ name: "capture", from: before.capture, to: after.capture });
  if (!sameInterventions(before.reach, after.reach))
    changes.push({ name: "reach", from: before.reach, to: after.reach });
  return changes;
}

/**
 * Mark in an answer that `changes` act from its token `index` on.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 * @param {number} index
 * @param {Change[]} changes
 */
export function addMark(answer, segment, index, changes) {
  const last = answer.marks.at(-1);
  const before = last?.segment === segment ? last : null;
  const sameDrag =
    before && index - before.index <= SAME_DRAG_TOKENS && names(before.changes) === names(changes);
  const mark = { segment, index, changes, shown: changes };
  const earlier = before?.shown.length ? before.shown : before?.changes;
  const drag = sameDrag ? mergeChanges(earlier ?? [], changes) : [];
  if (before && drag.length) {
    mark.shown = drag; // a drag back to its start shows both changes instead
    before.shown = [];
  }
  if (before?.index === index) {
    mark.changes = mergeChanges(before.changes, changes);
    if (!sameDrag) mark.shown = mergeChanges(before.shown, changes);
    answer.marks.pop();
  }
  answer.marks.push(mark);
}

/**
 * Merge two successive changes into one.
 *
 * @param {Change[]} earlier
 * @param {Change[]} later
 */
function mergeChanges(earlier, later) {
  const started = new Map(earlier.map(({ name, from }) => [name, from]));
  const untouched = earlier.filter(({ name }) => !later.some((change) => change.name === name));
  const joined = later.map((change) => ({
    ...change,
    from: started.get(change.name) ?? change.from,
  }));
  return [...untouched, ...joined].filter(({ name, from, to, words }) =>
    name === "reach" ? !sameInterventions(from, to) : words !== undefined || from !== to,
  );
}
