// Tools of the person's own: a program that the browser asks by HTTP.
//
// Only the origins of --tool-url are called; the page's policy allows no others. The program gets the
// arguments as JSON in a POST, and its answer, a text, is the result. It has to allow the page's origin
// (CORS).

export const TIMEOUT_MS = 10_000;
const MAX_RESULT = 64 * 1024;
/** @type {HTMLMetaElement | null} */
const meta = document.querySelector('meta[name="tokenglass-tools"]');
const allowed = new Set(meta?.content.split(" ").map((origin) => new URL(origin).origin));
const NAME = /^[a-zA-Z0-9_-]{1,64}$/;

/**
 * Return why an address cannot be that of a tool, or "".
 *
 * @param {string} address
 */
export function whyNotAddress(address) {
  const url = URL.canParse(address) ? new URL(address) : null;
  if (url?.protocol !== "http:" && url?.protocol !== "https:") return "The address must begin with http:// or https://.";
  if (url.username || url.password) return "The address must not contain a user name or password.";
  if (!allowed.has(url.origin))
    return `This server does not let its page call ${url.origin}; start it with --tool-url ${url.origin}.`;
  return "";
}

/**
 * Read a tool that was described as JSON, {name, description, parameters}: {tool}, or {error}.
 *
 * @param {string} address
 * @param {string} description
 * @returns {{tool: OwnTool, error?: undefined} | {error: string, tool?: undefined}}
 */
export function readTool(address, description) {
  const error = whyNotAddress(address.trim());
  if (error) return { error };
  let given;
  try {
    given = JSON.parse(description);
  } catch (wrong) {
    return { error: `The description is not JSON: ${/** @type {Error} */ (wrong).message}.` };
  }
  const { name, description: words = "", parameters = { type: "object", properties: {} } } =
    given?.function ?? given ?? {};
  if (typeof name !== "string" || !NAME.test(name))
    return { error: "The description needs a “name” of 1 to 64 letters, digits, underscores and hyphens." };
  if (typeof words !== "string") return { error: "“description” must be a text." };
  if (parameters?.type !== "object")
    return { error: "“parameters” must be a JSON schema with “type”: “object”." };
  return { tool: { name, description: words, parameters, url: address.trim() } };
}

/**
 * Call a tool; return its answer. Throws an Error that says what is wrong.
 *
 * @param {OwnTool} tool
 * @param {object} given
 */
export async function callOwn({ name, url }, given) {
  const why = whyNotAddress(url); // it was kept by this browser, and may be of an older page
  if (why) throw new Error(why);
  const response = await fetch(url, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ name, arguments: given }),
    credentials: "omit",
    redirect: "error",
    referrerPolicy: "no-referrer",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  }).catch((error) => {
    const late = error.name === "TimeoutError";
    throw new Error(
      late
        ? `${url} did not answer within ${TIMEOUT_MS / 1000} seconds`
        : `${url} cannot be called: it must be running, and answer with Access-Control-Allow-Origin`,
    );
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${url} answered ${response.status}: ${text.slice(0, 200)}`);
  if (text.length > MAX_RESULT)
    throw new Error(`${url} answered with ${text.length} characters; at most ${MAX_RESULT} are accepted`);
  return text;
}
