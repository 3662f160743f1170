// Saving the conversation as a replay, and opening one: dialog, keys, files dropped on the page.

import { byId, el, setText } from "./dom.js";
import { pause } from "./filmplay.js";
import { bytes, plural } from "./format.js";
import { show, whyNotNow } from "./replay.js";
import { stopAgain } from "./replayagain.js";
import { BadReplay } from "./replaycheck.js";
import { blobOf, extent, nameOf, open, pack } from "./replayfile.js";
import { state } from "./state.js";

const dialog = byId("replays");
const picker = byId("replay-file");

export function setUpReplayDialog() {
  byId("replay-open").addEventListener("click", openDialog);
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  byId("save-packed").addEventListener("click", () => saveReplay(true));
  byId("save-json").addEventListener("click", () => saveReplay(false));
  byId("replay-choose").addEventListener("click", chooseReplay);
  picker.addEventListener("change", () => {
    const [file] = picker.files;
    if (file) openReplay(file);
    picker.value = ""; // so that the same file can be chosen again
  });
  setUpDrop();
}

// ---- saving ----------------------------------------------------------------------------------

/** The conversation as the file's object, or null when there is none; says why. */
function packed() {
  try {
    if (state.replay) throw new BadReplay("This is a replay already, from a file.");
    return pack(state);
  } catch (error) {
    if (!(error instanceof BadReplay)) throw error;
    tell(error.message);
    return null;
  }
}

async function openDialog() {
  complain("");
  tell("");
  dialog.showModal();
  const replay = packed();
  for (const button of dialog.querySelectorAll("[data-save]")) button.disabled = !replay;
  if (!replay) return;
  const { answers, tokens } = extent(replay);
  const blobs = [await blobOf(replay, false), await blobOf(replay, true)];
  const [plain, small] = blobs.map(({ size }) => bytes(size));
  tell(`${plural(answers, "answer")}, ${plural(tokens, "token")}: ${plain}, compressed ${small}.`);
}

/** Save the conversation as a file of the user; by key as well. */
export async function saveReplay(compressed = true) {
  const replay = packed();
  if (!replay) {
    byId("say").textContent = byId("replay-size").textContent;
    return;
  }
  const blob = await blobOf(replay, compressed);
  const link = el("a");
  link.href = URL.createObjectURL(blob);
  link.download = nameOf(replay, compressed);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  const said = `Saved as ${link.download}, ${bytes(blob.size)}.`;
  tell(said);
  byId("say").textContent = said;
}

// ---- opening ---------------------------------------------------------------------------------

export const chooseReplay = () => picker.click();

async function openReplay(file) {
  complain("");
  try {
    const why = whyNotNow();
    if (why) throw new BadReplay(why);
    const replay = await open(file);
    pause();
    stopAgain();
    show(replay, file.name);
  } catch (error) {
    if (!(error instanceof BadReplay)) reportError(error);
    return refuse(file, error);
  }
  dialog.close();
  byId("say").textContent = `Replay of ${file.name}. The space bar plays it.`;
  requestAnimationFrame(() => byId("film-at").focus()); // the bar is shown in this frame
  return undefined;
}

function refuse({ name }, { message }) {
  if (!dialog.open) openDialog();
  complain(`${name} cannot be opened. ${message}`);
}

const tell = (text) => setText(byId("replay-size"), text);

function complain(text) {
  setText(byId("replay-error"), text);
  byId("replay-error").hidden = text === "";
}

// ---- dropping --------------------------------------------------------------------------------

const bringsFile = ({ dataTransfer }) => dataTransfer?.types.includes("Files");

function setUpDrop() {
  const { body } = document;
  document.addEventListener("dragover", (event) => {
    if (!bringsFile(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    body.toggleAttribute("data-drop", true);
  });
  document.addEventListener("dragleave", ({ relatedTarget }) => {
    if (!relatedTarget) body.toggleAttribute("data-drop", false);
  });
  document.addEventListener("drop", (event) => {
    body.toggleAttribute("data-drop", false);
    if (!bringsFile(event)) return;
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (file) openReplay(file);
  });
}
