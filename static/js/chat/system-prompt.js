// The system prompt: the first row of the transcript, a field that is always there to be edited.

import { editConversation } from "../conversations/keeper.js";
import { latest, tokenize } from "../net/inspect.js";
import { changed, on, ready, setConversation, state } from "../state.js";
import { byId, setText } from "../ui/dom.js";
import { isComposing } from "../ui/enter-key.js";
import { growWithText } from "../ui/grow.js";
import { markUnsaved } from "../ui/message-editor.js";
import { saveSoon } from "../turns/persist.js";
import { systemPrompt } from "./session.js";

const row = byId("system");
const field = byId("system-text");
const note = byId("system-note");
/** The prompt and model that were last checked against the chat template. */
let checked = "";

export function setUpSystemPrompt() {
  field.addEventListener("input", () => {
    markUnsaved(field, true);
    setConversation({ system: field.value });
    saveSoon();
  });
  field.addEventListener("blur", () => {
    field.scrollTop = 0;
    markUnsaved(field, false);
    changed("conversations"); // what another tab wrote meanwhile can be shown now
  });
  field.addEventListener("change", () => editConversation({ system: field.value.trim() }));
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || isComposing(event)) return;
    event.preventDefault(); // else it would stop the run
    field.blur();
  });
  on("turns settings hello connection replay conversations system", draw);
}

function draw() {
  const system = systemPrompt();
  const isChat = state.turns.length
    ? state.turns.some(({ mode }) => mode === "chat") || state.mode === "chat"
    : state.mode === "chat";
  row.hidden = !isChat || (state.replay !== null && system === "");
  field.readOnly = state.replay !== null;
  if (field.value.trim() !== system.trim() || field.readOnly) field.value = system;
  growWithText(field);
  check(system.trim());
}

/**
 * Say so if the chat template refuses the system prompt or leaves it out.
 *
 * @param {string} system
 */
function check(system) {
  const key = JSON.stringify([system, state.hello?.model.name]);
  if (!ready() || key === checked || document.activeElement === field) return;
  checked = key;
  setText(note, "");
  if (system === "" || row.hidden) return;
  const messages = [
    { role: "system", content: system },
    { role: "user", content: "?" },
  ];
  latest("system", /** @type {Countable} */ ({ messages }), tokenize).then(
    ({ rendered }) => {
      const left = !rendered.includes(system);
      setText(note, left ? "This model’s chat template leaves the system prompt out." : "");
    },
    (error) => {
      if (error.code === "lost") checked = "";
      else setText(note, `The system prompt cannot be used: ${error.message}.`);
    },
  );
}
