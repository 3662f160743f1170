// Load of every engine that serves the model: hidden if there is only one.

import { count, percent } from "../../ui/format.js";
import { engines, STATES } from "../shared/engines.js";
import { addRow, clearRows, newTable, numeric } from "../shared/table.js";

const COLUMNS = ["running", "waiting", "KV blocks in use", "prompt tokens found"];

/** @type {HTMLTableElement} */
let table;

/** @param {HTMLElement} root */
export function buildReplicas(root) {
  table = newTable("st-replicas", "Load of each engine", ["engine", ...numeric(COLUMNS)]);
  table.hidden = true;
  root.append(table);
}

export function drawReplicas() {
  const replicas = engines();
  table.hidden = replicas.length < 2;
  if (table.hidden) return;
  clearRows(table);
  replicas.forEach((replica, i) => addRow(table, [String(i + 1), ...cellsOf(replica)]));
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
