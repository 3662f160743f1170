// Where the guided walk begins. What it says and does is fetched when it is first asked for.

import { byId } from "./dom.js";

export function setUpTour() {
  for (const button of document.querySelectorAll("[data-tour-start]"))
    button.addEventListener("click", () => {
      button.closest("dialog")?.close();
      startTour();
    });
}

/** Begin the walk, or put the keyboard where it is; by key as well. */
export async function startTour() {
  const guide = await import("./tour/guide.js").catch(() => null);
  if (guide) guide.startTour();
  else byId("say").textContent = "The walk could not be fetched: the server cannot be reached.";
}
