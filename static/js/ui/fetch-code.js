// Code that is fetched when it is first wanted.

/** As Chromium, Firefox and WebKit say it. */
const IMPORTING = /dynamically imported module|importing a module script/i;

/** Code could not be fetched: the server did not answer. */
export class Unfetched extends Error {}

/**
 * What `load`, an import, promises.
 *
 * Fails with Unfetched while the server cannot be reached, which a browser reports as a TypeError
 * about importing; what was fetched but cannot be run fails as it does.
 */
export async function fetchCode(load) {
  try {
    return await load();
  } catch (error) {
    const isLost = error instanceof TypeError && IMPORTING.test(error.message);
    throw isLost ? new Unfetched("The server cannot be reached.") : error;
  }
}
