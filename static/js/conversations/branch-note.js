// The note in the transcript that says from which conversation a branch comes.

import { on, state } from "../state.js";
import { byId, el, setText } from "../ui/dom.js";
import { readEntry } from "./database.js";
import { onKept } from "./keeper.js";
import { nameOf } from "./drawer-row.js";
import { openConversation } from "./library.js";

export const branchNote = el("p", "branched");
const link = el("button", "text");
const gone = el("span");
link.type = "button";
branchNote.append("Branched from ", link, gone);

/** The origin that was looked up last. @type {ReplayFile.BranchOrigin | null} */
let origin = null;

export function setUpBranchNote() {
  link.addEventListener("click", open);
  on("conversations", () => state.conversation.branchedFrom !== origin && lookUp());
  onKept((id) => (id === null || id === origin?.id) && lookUp());
}

/** Find the conversation in storage: it may have another name now, or be gone. */
async function lookUp() {
  const from = state.conversation.branchedFrom ?? null;
  origin = from;
  draw(null);
  if (!from) return;
  const entry = await readEntry(from.id).catch(() => null);
  if (origin === from) draw(entry ?? null);
}

/** @param {Entry | null} entry */
function draw(entry) {
  link.hidden = !entry;
  gone.hidden = !!entry;
  setText(link, entry ? nameOf(entry) : "");
  setText(gone, origin && !entry ? `“${origin.title}”, which is no longer here` : "");
}

async function open() {
  if (!origin) return;
  try {
    await openConversation(origin.id);
    byId("prompt").focus();
  } catch (error) {
    if (error instanceof TypeError) throw error;
    draw(null);
  }
}
