// Modules that are loaded on first use.

/** Wording of Chromium, Firefox and WebKit. */
const IMPORTING = /dynamically imported module|importing a module script/i;

/** A module could not be fetched: the server did not answer. */
export class Unfetched extends Error {}

/**
 * Return what `load`, an import, resolves to.
 *
 * Rejects with Unfetched while the server cannot be reached, which browsers report as a TypeError
 * about importing. Errors of the module itself pass through.
 *
 * @template T
 * @param {() => Promise<T>} load
 */
export async function fetchCode(load) {
  try {
    return await load();
  } catch (error) {
    const isLost = error instanceof TypeError && IMPORTING.test(error.message);
    throw isLost ? new Unfetched("The server cannot be reached.") : error;
  }
}
