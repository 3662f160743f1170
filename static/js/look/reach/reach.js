// @ts-nocheck
// Reach in, the instrument that sets interventions (interventions/): scale or switch off heads,
// attention, MLPs and layers, steer and patch the residual stream, during generation; and show the
// effect on one token.

import { el } from "../../ui/dom.js";
import { tokenLabel } from "../../ui/format.js";
import { sameInterventions } from "../../interventions/interventions.js";
import * as store from "../../interventions/intervention-store.js";
import { factorOf, isSettingEmpty } from "../../interventions/intervention-wire.js";
import { canRerun, rerun } from "../../chat/rerun.js";
import { changed, lastTurn, shownAnswer, state } from "../../state.js";
import { view } from "../../view.js";
import { Missing, sequenceOf } from "../shared/context.js";
import { FactorBar } from "./factor-bar.js";
import { effectOf, measured, readEffect, sourceOf } from "./effect.js";
import { placeLayer, FactorGrid } from "./factor-grid.js";
import { PatchPanel } from "./patch-panel.js";
import { interventionStatus } from "./status.js";
import { SteerPanel } from "./steer-panel.js";
import { TextEnd } from "./text-end.js";
import { NextTokens } from "./next-tokens.js";

const IN_GENERAL = "1 means unchanged, bit for bit. A change acts within a few tokens.";
const VIEWS = { steer: "Steer", patch: "Patch" };

let bar = null;
let grid = null;
let steer = null;
let patch = null;
let tokens = null;
let text = null;
let make = null;
let wanted = "steer";
/** Selected place of the grid. */
let chosen = "head 0.0";
/** Effect drawn by the last `show`: `readEffect`, or null. */
let found = null;

export const reach = {
  needs: "nothing",

  setUp(root) {
    bar = new FactorBar(root, {
      scale: (factor, gesture) => store.setFactor(chosen, factor, gesture),
      toGrid: () => grid.focus(chosen),
      undo: store.undo,
      redo: store.redo,
      reset: store.reset,
      again: rerun,
    });
    const parts = root.appendChild(el("div", "rc-parts"));
    grid = new FactorGrid(parts, {
      choose,
      toggle: store.toggle,
      scale: store.setFactor,
      factor: (place) => factorOf(state.interventions.setting, place),
      type: (place, character) => bar.type(character),
    });
    make = parts.appendChild(el("section", "rc-make"));
    buildMake();
    const next = parts.appendChild(el("section", "rc-next"));
    next.tabIndex = 0; // makes it scrollable from the keyboard
    next.setAttribute("aria-label", "Effect on the next token");
    tokens = new NextTokens(next);
    text = new TextEnd(root);
  },

  show(context) {
    const { model } = context.hello;
    const { setting, past, future } = state.interventions;
    const free = !state.replay;
    if (placeLayer(chosen) >= model.n_layers) chosen = "head 0.0";
    const effect = effectOf(context);
    const both = effect.why ? null : measured(effect);
    found = both?.without ? readOnce(effect, both) : null;
    bar.draw({
      chosen,
      factor: factorOf(setting, chosen),
      status: interventionStatus(),
      can: {
        undo: free && past.length,
        redo: free && future.length,
        reset: free && !isSettingEmpty(setting),
        again: canRerun(),
      },
      free,
    });
    const word = found ? effect.name : "";
    grid.draw({ model, setting, chosen, hot: view.row?.layer, effect: found?.byLayer, word, free });
    drawMake(context, { setting, model, free });
    tokens.draw(effect, found, effect.why ?? both?.trouble ?? "Computing …");
    text.draw(context);
    return found ? sourceOf(effect, both) : IN_GENERAL;
  },

  table: () => ({
    columns: ["layer", "part", "factor", "p of the chosen token without", "with"],
    rows: grid.numbers(state.interventions.setting, found?.byLayer),
  }),
};

/** The last result: {key, found}. */
let last = { key: "" };

function readOnce(effect, both) {
  if (last.key !== effect.key) last = { key: effect.key, found: readEffect(effect, both) };
  return last.found;
}

/** Select a place; the core sample focuses its layer. */
function choose(place) {
  if (place === chosen) return;
  chosen = place;
  view.row = { layer: placeLayer(place), part: place.startsWith("mlp") ? 1 : 0 };
  view.hoverRow = null;
  changed("focus", "look");
}

// ---- steering and patching ---------------------------------------------------------------------

function buildMake() {
  const choices = el("fieldset", "seg rc-views");
  choices.append(el("legend", "vh", "Steering or patching"));
  for (const [value, name] of Object.entries(VIEWS)) {
    const choice = el("label", "", name);
    const input = Object.assign(el("input"), { type: "radio", name: "look-reach", value });
    input.checked = value === wanted;
    choice.prepend(input);
    choice.append(el("b"));
    choices.append(choice);
  }
  choices.addEventListener("change", ({ target }) => {
    wanted = target.value;
    changed("look");
  });
  make.append(choices);
  steer = new SteerPanel(make.appendChild(el("div", "rc-pane")));
  patch = new PatchPanel(make.appendChild(el("div", "rc-pane")), () => changed("look"));
}

function drawMake(context, { setting, model, free }) {
  const [choices, ...panes] = make.children;
  Object.keys(VIEWS).forEach((name, i) => {
    panes[i].hidden = name !== wanted;
    const n = setting[name].length;
    choices.querySelectorAll("b")[i].textContent = n ? String(n) : "";
  });
  steer.draw({ setting, model, free });
  const acting = shownAnswer(lastTurn())?.segment?.interventions?.patch ?? [];
  const isActive = (one) =>
    acting.some((each) => sameInterventions({ patch: [each] }, { patch: [one] }));
  patch.draw({ setting, model, free, target: targetOf(context), isActive });
}

/** Return the focused token as a place to patch, or {why} it cannot be. */
function targetOf({ answer, token, index }) {
  if (!token) return { why: "No answer yet. A patch replaces one of its tokens." };
  if (answer !== shownAnswer(lastTurn()))
    return { why: "Only tokens of the newest answer can be patched." };
  try {
    const { position, texts } = sequenceOf({ answer, token, index });
    const here = tokenLabel(texts[position], "·");
    return { position, at: index < 0 ? null : index, token, here };
  } catch (error) {
    if (!(error instanceof Missing)) throw error;
    return { why: error.message };
  }
}
