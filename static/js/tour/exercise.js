// The question at the end of a lesson: a field for the number that the reader measured, and the verdict.

import { byId, setText } from "../ui/dom.js";

/** Digits in groups of three, as the page writes them. */
const GROUPED = /^\d{1,3}(,\d{3})+(\.\d+)?$/;
const NUMBER = /^[+-]?\d+([.,]\d+)?/;

const form = byId("tour-exercise");
const field = byId("tour-answer");
const verdict = byId("tour-verdict");
const reveal = byId("tour-reveal");

/** The question that is shown, or null. @type {Exercise | null} */
let shown = null;

export function setUpExercise() {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (shown) say(shown, judge(field.value, shown));
  });
  reveal.addEventListener("click", () => {
    if (shown) say(shown, { text: `Measured: ${shown.written}.`, isOver: true });
    field.focus();
  });
}

/** Show a question, or none. @param {Exercise | null} exercise */
export function setExercise(exercise) {
  shown = exercise;
  form.hidden = !exercise;
  if (!exercise) return;
  setText(byId("tour-unit"), exercise.label);
  field.value = "";
  say(exercise, { text: "", isOver: true });
}

/** @param {Exercise} exercise @param {{text: string, isOver: boolean, isRight?: boolean}} result */
function say(exercise, { text, isOver, isRight = false }) {
  setText(verdict, text);
  form.classList.toggle("right", isRight);
  reveal.hidden = isOver;
}

/**
 * Read a number as people write it: "1,024", "12.5", "12,5 ms"; null if there is none.
 *
 * @param {string} text
 */
export function readNumber(text) {
  const typed = text.replaceAll(/[\s\u00a0\u202f]/g, "").replace(/^≈|^~/, "");
  const [head] = typed.match(/^[\d,.+-]+/) ?? [""];
  if (GROUPED.test(head)) return Number(head.replaceAll(",", ""));
  const match = NUMBER.exec(head);
  return match && match[0] === head ? Number(head.replace(",", ".")) : null;
}

/**
 * Say whether an answer is right.
 *
 * @param {string} text
 * @param {Exercise} exercise
 */
function judge(text, { measured, tolerance, written, hint }) {
  const given = readNumber(text);
  if (given === null) return { text: "Type a number, such as 12 or 3.5.", isOver: true };
  if (Math.abs(given - measured) <= tolerance * Math.abs(measured) + 1e-9)
    return { text: `Right: ${written}.`, isOver: true, isRight: true };
  return { text: `Not ${text.trim().slice(0, 20)}. ${hint}`, isOver: false };
}
