// Ids that this page gives to runs and conversations.

/** Return a new id: 16 characters of base64url. */
export function newId() {
  const raw = String.fromCharCode(...crypto.getRandomValues(new Uint8Array(12)));
  return btoa(raw).replaceAll("+", "-").replaceAll("/", "_");
}
