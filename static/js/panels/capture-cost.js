// What looking costs: the speed of writing while nothing is watched, while every layer is captured
// and while an instrument asks the engine as well; and the memory of what the page keeps.

import { byId, el } from "./dom.js";
import { bytes, count, figure, plural } from "./format.js";
import { keeping } from "./keeping.js";
import { extent as answers } from "./look/kept.js";
import { speeds } from "./overhead.js";
import { live, on, state } from "./state.js";

const dialog = byId("costs");

export function setUpCosts() {
  byId("costs-open").addEventListener("click", () => {
    draw();
    dialog.showModal();
  });
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  on("tokens turns hello", () => dialog.open && draw());
  on("turns", letGo);
}

/** Measurements of runs that left the conversation are forgotten. */
function letGo() {
  const segments = live().turns.flatMap(({ answers: its = [] }) => its.flatMap((a) => a.segments));
  keeping.keepOnly(new Set(segments));
}

function draw() {
  byId("costs-facts").replaceChildren(
    ...[...rowsOfSpeed(), ...rowsOfMemory()].map(([name, value]) => {
      const row = el("div");
      row.append(el("dt", "", name), el("dd", "", value));
      return row;
    }),
  );
}

function rowsOfSpeed() {
  const { off, on: captured, asking } = state.replay ? {} : speeds();
  const told = (value) => {
    if (!value) return "not measured yet";
    const share = off && value !== off ? Math.round(100 * (1 - value / off)) : 0;
    return `${figure(value)} tok/s${share > 0 ? `, ${share} % less` : ""}`;
  };
  return [
    ["Nothing watched", told(off)],
    ["Layers captured", told(captured)],
    ["Instrument asking", told(asking)],
  ];
}

function rowsOfMemory() {
  const { bytes: kept, whole, together, shared, most } = keeping.extent;
  const parts = [`${bytes(kept)} of ${bytes(keeping.mostBytes)}`, `${plural(whole, "token")} whole`];
  if (together) parts.push(`${count(together)} with their heads put together`);
  if (shared) parts.push(`${count(shared)} as means of up to ${most} tokens`);
  const { bytes: given, mostBytes } = answers();
  return [
    ["Measurements", parts.join(", ")],
    ["Answers", `${bytes(given)} of ${bytes(mostBytes)}, of instruments`],
  ];
}
