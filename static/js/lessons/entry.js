// Entry of the lessons: the menu, and the start of one by name. Their steps are loaded on first use.

import { lead } from "../tour/entry.js";
import { changed } from "../state.js";
import { byId, el } from "../ui/dom.js";
import { LESSONS } from "./list.js";

const KEY = "tokenglass.lessons";
const dialog = byId("lessons");
/** Name of the lesson in progress, or "". */
let running = "";

export function setUpLessons() {
  for (const button of document.querySelectorAll("[data-lessons-open]"))
    button.addEventListener("click", () => {
      button.closest("dialog")?.close();
      openLessons();
    });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}

/** Open the menu, with the focus on the first unfinished lesson. */
function openLessons() {
  const done = finished();
  byId("lessons-list").replaceChildren(...LESSONS.map((lesson) => entryOf(lesson, done.has(lesson.name))));
  dialog.showModal();
  const next = LESSONS.find(({ name }) => !done.has(name)) ?? LESSONS[0];
  dialog.querySelector(`[data-lesson="${next.name}"]`)?.setAttribute("autofocus", "");
  /** @type {HTMLElement | null} */ (dialog.querySelector("[autofocus]"))?.focus();
}

/** @param {import("./list.js").Lesson} lesson @param {boolean} isDone */
function entryOf({ name, question, measures }, isDone) {
  const item = el("li", isDone ? "done" : "");
  const link = item.appendChild(el("a", "", question));
  link.href = `#lesson=${name}`;
  link.dataset.lesson = name;
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    dialog.close();
    startLesson(name);
  });
  item.append(el("span", "", `You measure ${measures}.`));
  if (isDone) item.append(el("b", "", "done"));
  return item;
}

/** Name of the lesson in progress, or "". */
export const lessonName = () => running;

/** Start a lesson; false if there is none of this name. @param {string} name */
export function startLesson(name) {
  if (!LESSONS.some((lesson) => lesson.name === name)) return false;
  lead(
    async () => {
      const { routeOf } = await import("./routes.js");
      running = name;
      changed("look");
      return routeOf(name);
    },
    (isFinished) => ended(name, isFinished),
  );
  return true;
}

/** @param {string} name @param {boolean} isFinished */
function ended(name, isFinished) {
  if (running === name) running = "";
  changed("look");
  if (!isFinished) return;
  keep(new Set([...finished(), name]));
  openLessons();
}

// ---- finished lessons, in this browser --------------------------------------------------------

/** @returns {Set<string>} */
function finished() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return new Set(Array.isArray(kept) ? kept : []);
  } catch {
    return new Set(); // storage is off, or holds something else
  }
}

/** @param {Set<string>} names */
function keep(names) {
  try {
    localStorage.setItem(KEY, JSON.stringify([...names]));
  } catch {
    // Storage is off: the menu does not mark finished lessons next time.
  }
}
