// Code that is fetched when it is first wanted.

/** Code could not be fetched: the server did not answer. */
export class Unfetched extends Error {}

/**
 * What `load`, an import, promises.
 *
 * Fails with Unfetched while the server cannot be reached, which a browser reports as a TypeError;
 * what was fetched but cannot be run fails as it does.
 */
export async function fetchCode(load) {
  try {
    return await load();
  } catch (error) {
    throw error instanceof TypeError ? new Unfetched("The server cannot be reached.") : error;
  }
}
