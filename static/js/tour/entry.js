// Entry of the guided tour and of lessons, whose code is loaded on first use.

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
export const startTour = () => lead(async () => (await import("./tour.js")).TOUR);

/**
 * Lead through a route. `load` fetches its code; `onEnd` is called at its end, with whether it was
 * finished.
 *
 * @param {() => Promise<Route>} load
 * @param {(isFinished: boolean) => void} [onEnd]
 */
export async function lead(load, onEnd) {
  if (isReading()) setReading(false); // its steps point at the panels
  try {
    const [{ startGuide }, route] = await fetchCode(() => Promise.all([import("./guide.js"), load()]));
    startGuide(route, onEnd);
  } catch (error) {
    setState({ problem: { code: "walk", message: /** @type {Error} */ (error).message } });
    if (!(error instanceof Unfetched)) reportError(error);
  }
}
