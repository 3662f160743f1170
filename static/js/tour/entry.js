// Where the guided walk begins. What it says and does is fetched when it is first asked for.

import { fetchCode, Unfetched } from "./fetchcode.js";
import { changed, state } from "./state.js";

export function setUpTour() {
  for (const button of document.querySelectorAll("[data-tour-start]"))
    button.addEventListener("click", () => {
      button.closest("dialog")?.close();
      startTour();
    });
}

/** Begin the walk, or put the keyboard where it is; by key as well. */
export async function startTour() {
  try {
    (await fetchCode(() => import("./tour/guide.js"))).startTour();
  } catch (error) {
    state.problem = { code: "walk", message: error.message };
    changed("turns");
    if (!(error instanceof Unfetched)) reportError(error);
  }
}
