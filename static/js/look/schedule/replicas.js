// Load of every engine that serves the model: hidden if there is only one.

import { el, setText } from "../../ui/dom.js";
import { count, percent } from "../../ui/format.js";
import { engines, STATES } from "../shared/engines.js";

/** Names of the columns, and whether they are numbers. @type {[name: string, isNumber: boolean][]} */
const HEAD = [
  ["engine", false],
  ["running", true],
  ["waiting", true],
  ["KV blocks in use", true],
  ["prompt tokens found", true],
];

/** @type {HTMLTableElement} */
let table;

/** @param {HTMLElement} root */
export function buildReplicas(root) {
  table = root.appendChild(el("table", "st-replicas"));
  table.hidden = true;
  table.append(el("caption", "vh", "Load of each engine"));
  const head = table.createTHead().insertRow();
  for (const [name, isNumber] of HEAD) {
    const cell = head.appendChild(el("th", isNumber ? "n" : "", name));
    cell.scope = "col";
  }
  table.createTBody();
}

export function drawReplicas() {
  const replicas = engines();
  table.hidden = replicas.length < 2;
  if (table.hidden) return;
  const [body] = table.tBodies;
  if (body.rows.length !== replicas.length) body.replaceChildren(...replicas.map(newRow));
  replicas.forEach((replica, i) => {
    cellsOf(replica).forEach((text, j) => setText(body.rows[i].cells[j + 1], text));
  });
}

/** @param {Answers.ReplicaStatus} _ @param {number} i */
function newRow(_, i) {
  const row = el("tr");
  const name = row.appendChild(el("th", "", String(i + 1)));
  name.scope = "row";
  for (const [, isNumber] of HEAD.slice(1)) row.append(el("td", isNumber ? "n" : ""));
  return row;
}

/** @param {Answers.ReplicaStatus} replica */
function cellsOf({ state, stats }) {
  if (state !== "ready" || !stats) return [STATES[state] ?? "ready", "", "", ""];
  const { n_running, n_waiting, used_blocks, n_blocks, prompt_tokens, reused_tokens } = stats;
  const share = prompt_tokens ? ` (${percent(reused_tokens / prompt_tokens)} %)` : "";
  return [
    count(n_running),
    count(n_waiting),
    `${count(used_blocks)} of ${count(n_blocks)}`,
    `${count(reused_tokens)} of ${count(prompt_tokens)}${share}`,
  ];
}
