// Errors of the engine in this browser; codes and words are those of gpu/errors.py.

/** An error with a code that the page knows. `param`: the field that it is about. */
export class EngineError extends Error {
  /** @param {string} code @param {string} message @param {string} [param] */
  constructor(code, message, param = "") {
    super(message);
    this.code = code;
    this.param = param;
  }
}

/** A request has a value that cannot be taken. */
export class InvalidRequest extends EngineError {
  /** @param {string} message @param {string} [param] */
  constructor(message, param = "") {
    super("invalid_request", message, param);
  }
}

/** The prompt and one token to write do not fit in the context. */
export class ContextExceeded extends EngineError {
  /** @param {number} nPrompt @param {number} context */
  constructor(nPrompt, context) {
    const over = nPrompt - context + 1;
    super(
      "context_exceeded",
      `the prompt has ${nPrompt} tokens, but the context holds ${context} and one must be left to ` +
        `write; shorten the prompt by at least ${over} token${over === 1 ? "" : "s"} or start with a ` +
        "larger --context, if the model supports one",
    );
  }
}

/** Something that only the server's engine can do. */
export class NotInBrowser extends EngineError {
  /** @param {string} what @param {string} [param] */
  constructor(what, param = "") {
    super("not_in_browser", `${what} not available while the model runs in this browser`, param);
  }
}

/** What was thrown, in words: an Error, or an answer of the server (net/ask.js). @param {unknown} error */
export const messageOf = (error) => String(Object(error).message ?? error);

/**
 * Return the `error` message for an error that a message of the page caused. `id` is that of its
 * generation, `request` its number. An error that is not the engine's goes to the console.
 *
 * @param {unknown} error
 * @param {string} [id]
 * @param {number | null} [request]
 * @returns {ToPage.Error}
 */
export function errorAbout(error, id = "", request = null) {
  if (error instanceof EngineError)
    return {
      type: "error",
      code: error.code,
      message: error.message,
      id,
      param: error.param,
      request,
    };
  console.error(error);
  const message = "the engine in this browser made a mistake; see the console";
  return { type: "error", code: "internal", message, id, param: "", request };
}
