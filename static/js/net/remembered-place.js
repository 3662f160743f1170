// Where the model of this tab ran, remembered over a reload: the tab goes back to a model in this
// browser if all of its files are kept here.

import { keptModels, keptName } from "../local/gpu/weight-cache.js";

const KEY = "tokenglass.place";
const VERSION = 1;

/**
 * Remember a place (net/connection.js); null: the server. `kept`: the name under which the browser
 * keeps the model's files, "" until it has loaded.
 *
 * @param {PlaceHere | null} place
 * @param {string} [kept]
 */
function remember(place, kept = "") {
  try {
    if (place) sessionStorage.setItem(KEY, JSON.stringify({ version: VERSION, place, kept }));
    else sessionStorage.removeItem(KEY);
  } catch {
    // Storage is full or forbidden: the page begins with the server after a reload.
  }
}

function remembered() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
    return found?.version === VERSION ? found : null;
  } catch {
    return null;
  }
}

/** Remember where the model is to run. @param {PlaceHere | null} place */
export const rememberPlace = (place) => remember(place);

/**
 * Remember that the model of a place has loaded. `model`: that of its `hello`.
 *
 * @param {PlaceHere | null} place
 * @param {ToPage.PageModelInfo} model
 */
export const rememberLoaded = (place, { name, dtype }) => remember(place, keptName(name, dtype));

/** Did a model run in this browser when the tab was left? */
export const isPlaceRemembered = () => remembered() !== null;

/** Resolves to {place, problem}: the remembered place, or null and why it cannot be gone back to. */
export async function findRememberedPlace() {
  const { place, kept } = remembered();
  const found = (await keptModels().catch(() => [])).find(({ model }) => model === kept);
  if (found && found.bytes >= found.total) return { place, problem: "" };
  remember(null);
  const what = found ? "not all of its files are kept" : "its files are not kept";
  const problem =
    `before this page was loaded again, it ran in this browser, as ${place.dtype}, but ${what} there; ` +
    "press “Run in this browser” in the dialog of the model to fetch them again";
  return { place: null, problem };
}
