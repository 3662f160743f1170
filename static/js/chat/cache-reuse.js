// Chunks of a prompt that are moved within the KV cache instead of computed again, though the text
// before them changed: `cache_reuse` of a request. Approximate, so it is off unless asked for.

import { isLocal } from "../net/connection.js";
import { byId } from "../ui/dom.js";
import { plural } from "../ui/format.js";
import { saveSettings } from "../turns/persist.js";
import { on, setState, state } from "../state.js";

const field = byId("cache-reuse");
const note = byId("cache-reuse-note");

export function setUpCacheReuse() {
  field.addEventListener("change", () => {
    setState({ cacheReuse: field.value === "" ? null : Number(field.value) });
    saveSettings();
  });
  on("settings hello connection replay", draw);
}

/** Neither an engine in this browser nor an upstream moves chunks. */
const isOffered = () => !isLocal() && !state.hello?.upstream;

/** The field of a request; none: as the server was started. */
export const cacheReuseField = () =>
  state.cacheReuse === null || !isOffered() ? {} : { cache_reuse: state.cacheReuse };

function draw() {
  field.closest("label")?.toggleAttribute("hidden", !isOffered());
  field.value = String(state.cacheReuse ?? "");
  field.disabled = !!state.replay;
  note.hidden = !isOffered() || !state.cacheReuse;
}

/**
 * Say how much of an answer's prompts was moved: "64 tokens of the prompt moved (approximate)"; or "".
 *
 * @param {Answer} answer
 */
export function describeMoved({ segments }) {
  const n = segments.reduce((sum, { prefill }) => sum + prefill.moved, 0);
  return n ? `${plural(n, "token")} of the prompt moved (approximate)` : "";
}
