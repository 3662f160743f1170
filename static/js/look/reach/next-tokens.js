// Most likely next tokens, with and without interventions.

import { el, setText, setVars } from "../../ui/dom.js";
import { percent, tokenLabel } from "../../ui/format.js";
import { inWords, wayNames } from "./effect.js";

const ROWS = 7;

export class NextTokens {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.head = root.appendChild(el("h3", "ellipsis rc-head", "Next token"));
    this.summary = root.appendChild(el("p", "rc-effect-summary"));
    this.key = root.appendChild(el("p", "key"));
    this.names = [["k-out"], ["k-in"]].map(([name]) => {
      const span = this.key.appendChild(el("span"));
      span.append(el("i", name));
      return span.appendChild(el("span"));
    });
    this.list = root.appendChild(el("ol", "rc-tokens"));
    this.rows = Array.from({ length: ROWS }, newRow);
    this.list.append(...this.rows.map(({ row }) => row));
    this.foot = root.appendChild(el("p", "rc-what"));
  }

  /**
   * `effect` and `found` of look/reach/effect.js; `why`: text shown without `found`.
   *
   * @param {Effect} effect
   * @param {EffectFound | null} found
   * @param {string} why
   */
  draw(effect, found, why) {
    setText(this.head, effect.label ? `Next token after “${effect.label}”` : "Next token");
    this.key.hidden = this.list.hidden = this.foot.hidden = !found;
    if (!found || effect.why !== undefined) return setText(this.summary, why);
    setText(this.summary, inWords(effect, found));
    wayNames(effect).forEach((name, i) => setText(this.names[i], name));
    const shown = found.tokens.slice(0, ROWS);
    const own = found.tokens.find(({ id }) => id === effect.chosen);
    if (own && !shown.includes(own)) shown[ROWS - 1] = own;
    const largest = Math.max(...shown.flatMap((token) => [token.without ?? 0, token.with ?? 0]));
    this.rows.forEach((row, i) => drawRow(row, shown[i], effect, largest));
    const { entropy } = found;
    const bits = `${entropy.without.toFixed(2)} → ${entropy.with.toFixed(2)} bits`;
    return setText(this.foot, `entropy ${bits}`);
  }
}

function newRow() {
  const row = el("li");
  const bar = el("span", "b");
  const without = bar.appendChild(el("i", "b-out"));
  const now = bar.appendChild(el("i", "b-in"));
  const [word, numbers] = [el("span", "w"), el("span", "n")];
  row.append(word, bar, numbers);
  return { row, word, without, now, numbers };
}

/**
 * @param {ReturnType<typeof newRow>} row
 * @param {EffectFound["tokens"][number] | undefined} token
 * @param {EffectAsked} effect
 * @param {number} largest
 */
function drawRow({ row, word, without, now, numbers }, token, { chosen, name }, largest) {
  row.hidden = !token;
  if (!token) return;
  const own = token.id === chosen;
  row.classList.toggle("own", own);
  setText(word, own ? name : tokenLabel(token.text, "–"));
  setVars(without, { "--p": (token.without ?? 0) / largest });
  setVars(now, { "--p": (token.with ?? 0) / largest });
  /** @param {number} share */
  const figure = (/** @type {number | null} */ share) => (share === null ? "–" : percent(share));
  setText(numbers, `${figure(token.without)} → ${figure(token.with)}`);
}
