// Requests to the server's routes below /api, and what it answers.

/**
 * `url`: relative to the page, which a proxy may serve below a path. Resolves to the answer, parsed.
 * Throws the server's error, {code, message}, as its messages have it; the code is "lost" if the server
 * cannot be reached, and "unavailable" if its answer cannot be read, as that of a proxy's login page.
 *
 * @param {string} url
 * @param {{method?: string, body?: unknown}} [options]
 */
export async function ask(url, { method = "GET", body } = {}) {
  const headers = { "Content-Type": "application/json" };
  const json = body !== undefined && { headers, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(url, { method, ...json });
  } catch {
    throw { code: "lost", message: "The server cannot be reached; try again later." };
  }
  const answer = await response.json().catch(() => undefined);
  if (response.ok && answer !== undefined) return answer;
  const how = response.ok ? ", but what it sent is no JSON" : "";
  const message = `the server answered HTTP ${response.status}${how}; try again, or see its log`;
  throw answer?.error ?? { code: "unavailable", message };
}
