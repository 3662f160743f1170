// Activation patching: the residual stream of a token of this run, before a layer, is replaced by
// that of a token of another prompt.
//
// Meng et al. 2022, "Locating and editing factual associations in GPT" (activation patching).

import { el, inputOf, newButton, setText } from "../../ui/dom.js";
import { count, tokenLabel } from "../../ui/format.js";
import { latest, tokenize } from "../../net/inspect.js";
import { MAX_PATCHES } from "../../interventions/interventions.js";
import { add, edit, remove } from "../../interventions/intervention-store.js";
import { numberOf } from "../../view.js";
import { drawRange, newIcon, newMute, newRange } from "./factor-bar.js";

const ASK_AFTER_MS = 150;

export class PatchPanel {
  /** @param {HTMLElement} root @param {() => void} onChange */
  constructor(root, onChange) {
    this.onChange = onChange;
    this.list = root.appendChild(el("ul", "rc-list"));
    /** @type {Map<string, ReturnType<typeof newRow>>} */
    this.rows = new Map();
    this.other = otherPrompt("");
    this.layer = 0;
    this.timer = 0;
    /** @type {PatchTarget} */
    this.target = { why: "" };
    /** @type {PatchEntry[]} */
    this.patches = [];
    const form = root.appendChild(el("div", "rc-maker"));
    this.here = form.appendChild(el("p", "rc-here"));
    this.field = Object.assign(el("input", "rc-text-box"), {
      placeholder: "another prompt",
      autocomplete: "off",
      spellcheck: false,
    });
    this.field.setAttribute("aria-label", "Another prompt");
    this.field.addEventListener("input", () => this.#askSoon());
    this.pieces = el("div", "rc-pieces");
    this.pieces.setAttribute("role", "radiogroup");
    this.pieces.setAttribute("aria-label", "Token of the other prompt");
    this.pieces.addEventListener("change", (event) => {
      this.other.chosen = Number(inputOf(event).value);
      this.onChange();
    });
    this.range = newRange({ min: 0, step: 1, ariaLabel: "Layer to patch before" });
    this.range.input.addEventListener("input", (event) => {
      this.layer = Number(inputOf(event).value);
      this.onChange();
    });
    this.layerNo = el("span", "rc-what");
    this.patch = newButton("Patch", () => this.#add(), "text rc-add");
    const line = el("div", "rc-line");
    line.append(this.layerNo, this.range.node, this.patch);
    form.append(this.field, this.pieces, line);
  }

  // ---- the other prompt ------------------------------------------------------------------------

  #askSoon() {
    clearTimeout(this.timer);
    this.other = otherPrompt(this.field.value);
    this.timer = setTimeout(() => this.#cut(), ASK_AFTER_MS);
    this.onChange();
  }

  /** Tokenize the other prompt as a plain prompt, including its start token. */
  async #cut() {
    const { text } = this.other;
    if (text !== "") {
      try {
        const { tokens } = await latest("reach prompt", { prompt: text }, tokenize);
        if (text !== this.field.value) return;
        this.other = { text, tokens, chosen: tokens.length - 1, trouble: "" };
      } catch (error) {
        this.other.trouble = /** @type {Problem} */ (error).message;
      }
    }
    this.#drawPieces();
    this.onChange();
  }

  #drawPieces() {
    const { tokens, chosen, trouble } = this.other;
    const choices = tokens.map((piece, i) => {
      const label = el("label", "rc-piece", tokenLabel(piece.text, "·"));
      const input = Object.assign(el("input"), { type: "radio", name: "rc-piece", value: String(i) });
      input.checked = i === chosen;
      input.setAttribute("aria-label", `token ${i + 1}, ${tokenLabel(piece.text, "empty")}`);
      label.prepend(input);
      return label;
    });
    this.pieces.replaceChildren(...(trouble ? [el("span", "rc-trouble", trouble)] : choices));
  }

  // ---- this run --------------------------------------------------------------------------------

  /**
   * `target`: {position, at, here, token} of the focused token, or {why} there is none.
   *
   * @param {{setting: Setting, model: ToPage.PageModelInfo, target: PatchTarget, free: boolean, isActive: (patch: PatchEntry) => boolean}} now
   */
  draw({ setting, model, target, free, isActive }) {
    this.target = target;
    this.patches = setting.patch;
    this.layer = Math.min(this.layer, model.n_layers - 1);
    this.range.input.max = String(model.n_layers - 1);
    drawRange(this.range, this.layer, `layer ${this.layer}`);
    setText(this.layerNo, `before layer ${this.layer}`);
    this.#drawHere();
    const known = new Set(setting.patch.map(({ key }) => key));
    for (const [key, { node }] of this.rows)
      if (!known.has(key)) {
        node.remove();
        this.rows.delete(key);
      }
    for (const patch of setting.patch) this.#drawRow(patch, free, isActive(patch));
    this.list.hidden = !setting.patch.length;
    const full = setting.patch.length >= MAX_PATCHES;
    this.patch.disabled = !free || full || target.why !== undefined || this.other.chosen === null;
    this.field.disabled = !free;
  }

  #drawHere() {
    if (this.target.why !== undefined) return void this.here.replaceChildren(this.target.why);
    const { token, here } = this.target;
    const word = el("b", "", `${numberOf(token)} ${here}`);
    const rest = " (select it in the core sample), insert the residual stream of";
    this.here.replaceChildren("At ", word, rest);
    return undefined;
  }

  #add() {
    const { text: prompt, chosen: token, tokens } = this.other;
    if (this.target.why !== undefined || token === null) return;
    const { position, at, here } = this.target;
    const there = tokenLabel(tokens[token].text, "·");
    const { layer } = this;
    const before = this.patches.find((one) => one.layer === layer && one.position === position);
    if (before) edit("patch", before.key, { prompt, token, there, muted: false });
    else add("patch", { layer, position, prompt, token, at, here, there });
  }

  /** @param {PatchEntry} patch @param {boolean} free @param {boolean} acts */
  #drawRow(patch, free, acts) {
    const row = this.rows.get(patch.key) ?? this.#addRow(patch);
    row.node.toggleAttribute("data-muted", patch.muted);
    const here = patch.here || `token ${count(patch.position + 1)}`;
    setText(row.words, `${here} ← ${patch.there || `token ${count(patch.token + 1)}`}`);
    const [at, from] = [count(patch.position + 1), count(patch.token + 1)];
    const source = `token ${from} of “${patch.prompt}”`;
    row.words.title = `Token ${at} of the run gets the residual stream of ${source}`;
    setText(row.note, `layer ${patch.layer}${acts || patch.muted ? "" : ", acts when run again"}`);
    row.mute.setAttribute("aria-pressed", String(patch.muted));
    row.mute.disabled = row.gone.disabled = !free;
  }

  /** @param {PatchEntry} patch */
  #addRow({ key }) {
    const row = newRow(key);
    this.rows.set(key, row);
    this.list.append(row.node);
    return row;
  }
}

/** A prompt whose tokens are not known yet. @param {string} text */
const otherPrompt = (text) => ({
  text,
  tokens: /** @type {ToPage.PromptPiece[]} */ ([]),
  chosen: /** @type {number | null} */ (null),
  trouble: "",
});

/** @param {string} key */
function newRow(key) {
  const node = el("li", "rc-line rc-patch");
  const mute = newMute((muted) => edit("patch", key, { muted }));
  const gone = newIcon("i-close", "Remove this patch", () => remove("patch", key));
  const row = { node, words: el("b"), note: el("span", "rc-what"), mute, gone };
  node.append(row.words, row.note, mute, gone);
  return row;
}
