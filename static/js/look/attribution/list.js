// The parts of the prompt, or heads, that change most, as bars; clicking one shows it.

import { el, newButton, setText } from "../../ui/dom.js";
import { shareBar } from "../shared/table.js";

/** @typedef {import("./measure.js").Change} Change */
/** @typedef {import("./measure.js").Step} Cell */

/** Parts in the list. */
const N_LISTED = 12;

/** @type {Record<Change, string>} */
const HEADINGS = {
  out: "Change of log-probability without it, in nats",
  mask: "Change of log-probability with attention to it masked in all layers, in nats",
  swap: "Change of log-probability when it is swapped with the next, in nats",
};

const HEADS = "Change of log-probability with attention masked in one head, in nats";

/** An entry: a part of the prompt or a head, and by how much the log-probability falls. @typedef {{cell: Cell, text: string, effect: number}} Changed */

/** @param {(cell: Cell) => void} look called with what to show */
export function newList(look) {
  const box = el("div");
  const heading = box.appendChild(el("h3"));
  const list = box.appendChild(el("ol"));

  /** @param {Changed} changed @param {number} most */
  function itemOf({ cell, text, effect }, most) {
    const item = el("li");
    const word = newButton(text.trim(), () => look(cell), "w");
    item.append(word, shareBar(Math.abs(effect) / most, effect < 0 ? "lamp" : ""), el("span", "n", signed(effect, most)));
    return item;
  }

  return {
    box,

    /** @param {Changed[]} known @param {Change} change @param {boolean} isByHead */
    draw(known, change, isByHead) {
      setText(heading, isByHead ? HEADS : HEADINGS[change]);
      heading.hidden = !known.length;
      const sorted = known.toSorted((a, b) => Math.abs(b.effect) - Math.abs(a.effect));
      const most = Math.abs(sorted[0]?.effect ?? 1) || 1;
      list.replaceChildren(...sorted.slice(0, N_LISTED).map((changed) => itemOf(changed, most)));
    },
  };
}

/** How the log-probability changes, with enough digits for the largest of its kind. @param {number} effect @param {number} most */
export function signed(effect, most) {
  const nDigits = Math.min(5, Math.max(2, 1 - Math.floor(Math.log10(most))));
  return `${effect < 0 ? "+" : "−"}${Math.abs(effect).toFixed(nDigits)}`;
}
