// Entry of the guided tour, whose code is loaded on first use.

import { isReading, setReading } from "../ui/reading.js";
import { fetchCode, Unfetched } from "../ui/fetch-code.js";
import { setState } from "../state.js";

export function setUpTour() {
  for (const button of document.querySelectorAll("[data-tour-start]"))
    button.addEventListener("click", () => {
      button.closest("dialog")?.close();
      startTour();
    });
}

/** Start the tour, or focus it if it is running. */
export async function startTour() {
  if (isReading()) setReading(false); // its steps point at the panels
  try {
    (await fetchCode(() => import("./guide.js"))).startTour();
  } catch (error) {
    setState({ problem: { code: "walk", message: /** @type {Error} */ (error).message } });
    if (!(error instanceof Unfetched)) reportError(error);
  }
}
