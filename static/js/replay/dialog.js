// Saving a conversation as a replay and opening one: dialog, keys, files dropped on the page.

import { all, byId, setText } from "../ui/dom.js";
import { download } from "../ui/download.js";
import { pause } from "./playback-clock.js";
import { bytes, plural } from "../ui/format.js";
import { show, whyNotOpenable } from "./replay.js";
import { stopRerun } from "./rerun.js";
import { BadReplay } from "./field-checks.js";
import { blobOf, extent, nameOf, open, pack } from "./file.js";
import { FORMAT } from "./validate.js";
import { state } from "../state.js";

const dialog = byId("replays");
const picker = byId("replay-file");
/** The beginning of a file, in which a replay names its format. */
const HEAD_BYTES = 200;

export function setUpReplayDialog() {
  byId("replay-open").addEventListener("click", openDialog);
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  byId("save-packed").addEventListener("click", () => saveReplay(true));
  byId("save-json").addEventListener("click", () => saveReplay(false));
  byId("replay-choose").addEventListener("click", chooseReplay);
  picker.addEventListener("change", () => {
    const [file] = picker.files ?? [];
    if (file) openReplay(file);
    picker.value = ""; // so that the same file can be chosen again
  });
  setUpDrop();
}

// ---- saving ----------------------------------------------------------------------------------

/** Return the conversation as the file's object; without one, show why and return null. */
function packConversation() {
  try {
    if (state.replay) throw new BadReplay("This is already a replay from a file.");
    return pack(state);
  } catch (error) {
    if (!(error instanceof BadReplay)) throw error;
    showStatus(error.message);
    return null;
  }
}

async function openDialog() {
  showError("");
  showStatus("");
  dialog.showModal();
  const replay = packConversation();
  for (const button of all(dialog, "[data-save]")) button.toggleAttribute("disabled", !replay);
  if (!replay) return;
  const { answers, tokens } = extent(replay);
  const blobs = [await blobOf(replay, false), await blobOf(replay, true)];
  const [plain, small] = blobs.map(({ size }) => bytes(size));
  const written = `${plural(answers, "answer")}, ${plural(tokens, "token")}`;
  showStatus(`${written}: ${plain}, compressed ${small}.`);
}

/** Download the conversation as a file. */
export async function saveReplay(compressed = true) {
  const replay = packConversation();
  if (!replay) {
    byId("live-status").textContent = byId("replay-size").textContent;
    return;
  }
  const blob = await blobOf(replay, compressed);
  const name = nameOf(replay, compressed);
  download(blob, name);
  const saved = `Saved as ${name}, ${bytes(blob.size)}.`;
  showStatus(saved);
  byId("live-status").textContent = saved;
}

// ---- opening ---------------------------------------------------------------------------------

export const chooseReplay = () => picker.click();

function expectOpenable() {
  const why = whyNotOpenable();
  if (why) throw new BadReplay(why);
}

/** @param {File} file */
async function openReplay(file) {
  showError("");
  try {
    expectOpenable();
    const replay = await open(file);
    expectOpenable(); // a prompt may have been sent meanwhile
    pause();
    stopRerun();
    show(replay, file.name);
  } catch (error) {
    if (!(error instanceof BadReplay)) reportError(error);
    return refuse(file, error);
  }
  dialog.close();
  byId("live-status").textContent = `Replay of ${file.name}. The space bar plays it.`;
  requestAnimationFrame(() => byId("playback-position").focus()); // the bar is shown in this frame
  return undefined;
}

/**
 * Open the replay at `url`, which lies on the page's own origin. `address`: how the page's address says
 * it. Throws BadReplay.
 *
 * @param {string} url
 * @param {string} address
 */
export async function openReplayAt(url, address) {
  expectOpenable();
  let response;
  try {
    response = await fetch(url, { redirect: "error" });
  } catch {
    throw new BadReplay("Its replay cannot be reached.");
  }
  if (!response.ok) throw new BadReplay(`Its replay cannot be fetched (HTTP ${response.status}).`);
  const replay = await open(await response.blob());
  expectOpenable();
  pause();
  stopRerun();
  show(replay, decodeURIComponent(new URL(url).pathname.split("/").at(-1) ?? ""), address);
}

/**
 * @param {File} file
 * @param {unknown} error
 */
function refuse({ name }, error) {
  const { message } = /** @type {Error} */ (error);
  if (!dialog.open) openDialog();
  showError(`${name} cannot be opened. ${message}`);
}

/** @param {string} text */
const showStatus = (text) => setText(byId("replay-size"), text);

/** @param {string} text */
function showError(text) {
  setText(byId("replay-error"), text);
  byId("replay-error").hidden = text === "";
}

// ---- dropping --------------------------------------------------------------------------------

/** @param {DragEvent} dragEvent */
const bringsFile = ({ dataTransfer }) => dataTransfer?.types.includes("Files");

function setUpDrop() {
  const { body } = document;
  document.addEventListener("dragover", (event) => {
    if (!bringsFile(event) || !event.dataTransfer) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    body.toggleAttribute("data-drop", true);
  });
  document.addEventListener("dragleave", ({ relatedTarget }) => {
    if (!relatedTarget) body.toggleAttribute("data-drop", false);
  });
  document.addEventListener("drop", (event) => {
    body.toggleAttribute("data-drop", false);
    if (!bringsFile(event) || event.defaultPrevented) return;
    event.preventDefault();
    takeDropped([...(event.dataTransfer?.files ?? [])]);
  });
}

/** Open a dropped replay; attach other files to the next prompt. @param {File[]} files */
async function takeDropped(files) {
  const [file] = files;
  if (!file) return;
  if (files.length === 1 && (state.replay || (await looksLikeReplay(file)))) openReplay(file);
  else document.dispatchEvent(new CustomEvent("attach", { detail: files }));
}

/** @param {File} file */
async function looksLikeReplay(file) {
  if (file.name.endsWith(".gz")) return true;
  return file.name.endsWith(".json") && (await file.slice(0, HEAD_BYTES).text()).includes(FORMAT);
}
