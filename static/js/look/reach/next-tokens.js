// @ts-nocheck
// Most likely next tokens, with and without interventions.

import { el, setText, setVars } from "../../ui/dom.js";
import { percent, tokenLabel } from "../../ui/format.js";
import { inWords, wayNames } from "./effect.js";

const ROWS = 7;

export class NextTokens {
  constructor(root) {
    this.head = root.appendChild(el("h3", "rc-head", "Next token"));
    this.summary = root.appendChild(el("p", "rc-effect-summary"));
    this.key = root.appendChild(el("p", "rc-key"));
    this.names = [["k-out"], ["k-in"]].map(([name]) => {
      const span = this.key.appendChild(el("span"));
      span.append(el("i", name));
      return span.appendChild(el("span"));
    });
    this.list = root.appendChild(el("ol", "rc-tokens"));
    this.rows = Array.from({ length: ROWS }, () => this.list.appendChild(newRow()));
    this.foot = root.appendChild(el("p", "rc-what"));
  }

  /** `effect` and `found` of look/reach/effect.js; `why`: text shown without `found`. */
  draw(effect, found, why) {
    setText(this.head, effect.label ? `Next token after “${effect.label}”` : "Next token");
    setText(this.summary, found ? inWords(effect, found) : why);
    this.key.hidden = this.list.hidden = this.foot.hidden = !found;
    if (!found) return;
    wayNames(effect).forEach((name, i) => setText(this.names[i], name));
    const shown = found.tokens.slice(0, ROWS);
    const own = found.tokens.find(({ id }) => id === effect.chosen);
    if (!shown.includes(own)) shown[ROWS - 1] = own;
    const largest = Math.max(...shown.flatMap((token) => [token.without ?? 0, token.with ?? 0]));
    this.rows.forEach((row, i) => drawRow(row, shown[i], effect, largest));
    const { entropy } = found;
    setText(this.foot, `entropy ${entropy.without.toFixed(2)} → ${entropy.with.toFixed(2)} bits`);
  }
}

function newRow() {
  const row = el("li");
  const bar = el("span", "b");
  bar.append(el("i", "b-out"), el("i", "b-in"));
  row.append(el("span", "w"), bar, el("span", "n"));
  return row;
}

function drawRow(row, token, { chosen, name }, largest) {
  row.hidden = !token;
  if (!token) return;
  const [word, bar, numbers] = row.children;
  const own = token.id === chosen;
  row.classList.toggle("own", own);
  setText(word, own ? name : tokenLabel(token.text, "–"));
  setVars(bar.children[0], { "--p": (token.without ?? 0) / largest });
  setVars(bar.children[1], { "--p": (token.with ?? 0) / largest });
  const figure = (share) => (share === null ? "–" : percent(share));
  setText(numbers, `${figure(token.without)} → ${figure(token.with)}`);
}
