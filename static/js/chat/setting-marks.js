// Where settings changed in an answer, and what is told of it. Nothing here touches the page.

import { differences } from "./params.js";
import { same, touched } from "./reach.js";

/** Marks of one drag (the same settings, few tokens apart) are told once, by the last of them. */
const SAME_DRAG_TOKENS = 12;
const names = (changes) =>
  changes.map(({ name, from, to }) => (name === "reach" ? touched(from, to) : name)).join();

/** Which settings (with `capture` and `reach`) differ: [{name, from, to}]. */
export function settingChanges(before, after) {
  const changes = differences(before, after);
  if (before.capture !== after.capture)
    changes.push({ name: "capture", from: before.capture, to: after.capture });
  if (!same(before.reach, after.reach))
    changes.push({ name: "reach", from: before.reach, to: after.reach });
  return changes;
}

/** Mark in an answer that `changes` acted from its token `index` on. */
export function addMark(answer, segment, index, changes) {
  const last = answer.marks.at(-1);
  const before = last?.segment === segment ? last : null;
  const sameDrag =
    before && index - before.index <= SAME_DRAG_TOKENS && names(before.changes) === names(changes);
  const mark = { segment, index, changes, told: changes };
  const drag = sameDrag ? since(before.told.length ? before.told : before.changes, changes) : [];
  if (drag.length) {
    mark.told = drag; // one that went back to where it began is told both ways
    before.told = [];
  }
  if (before?.index === index) {
    mark.changes = since(before.changes, changes);
    if (!sameDrag) mark.told = since(before.told, changes);
    answer.marks.pop();
  }
  answer.marks.push(mark);
}

/** Two changes after each other as one. */
function since(earlier, later) {
  const started = new Map(earlier.map(({ name, from }) => [name, from]));
  const untouched = earlier.filter(({ name }) => !later.some((change) => change.name === name));
  const joined = later.map((change) => ({
    ...change,
    from: started.get(change.name) ?? change.from,
  }));
  return [...untouched, ...joined].filter(({ name, from, to, words }) =>
    name === "reach" ? !same(from, to) : words !== undefined || from !== to,
  );
}
