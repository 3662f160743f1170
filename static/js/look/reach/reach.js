// Reach in, the instrument that sets interventions (interventions/): scale or switch off heads,
// attention, MLPs and layers, steer and patch the residual stream, during generation; and show the
// effect on one token.

import { all, el, setText } from "../../ui/dom.js";
import { tokenLabel } from "../../ui/format.js";
import { newSegmented } from "../../ui/segmented.js";
import { sameInterventions } from "../../interventions/interventions.js";
import * as store from "../../interventions/intervention-store.js";
import { factorOf, isSettingEmpty } from "../../interventions/intervention-wire.js";
import { canRerun, rerun } from "../../chat/rerun.js";
import { changed, lastTurn, shownAnswer, state } from "../../state.js";
import { focusRow, view } from "../../view.js";
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
/** @type {[view: "steer" | "patch", label: string][]} */
const VIEWS = [
  ["steer", "Steer"],
  ["patch", "Patch"],
];

/** @type {FactorBar} */
let bar;
/** @type {FactorGrid} */
let grid;
/** @type {SteerPanel} */
let steer;
/** @type {PatchPanel} */
let patch;
/** @type {NextTokens} */
let tokens;
/** @type {TextEnd} */
let text;
/** @type {HTMLElement} */
let make;
/** @type {"steer" | "patch"} */
let wanted = "steer";
/** Panes of VIEWS, and how many of each act. @type {HTMLElement[]} */
let panes = [];
/** @type {HTMLElement[]} */
let counts = [];
/** Selected place of the grid. */
let chosen = "head 0.0";
/** Effect drawn by the last `show`: `readEffect`, or null. @type {EffectFound | null} */
let found = null;

/** @type {Instrument} */
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
    const both = effect.why === undefined ? measured(effect) : null;
    const answers = both && "without" in both ? both : null;
    const of = effect.why === undefined && answers ? { effect, answers } : null;
    found = of ? readOnce(of.effect, of.answers) : null;
    bar.draw({
      chosen,
      factor: factorOf(setting, chosen),
      status: interventionStatus(),
      can: {
        undo: free && past.length > 0,
        redo: free && future.length > 0,
        reset: free && !isSettingEmpty(setting),
        again: canRerun(),
      },
      free,
    });
    const word = of?.effect.name ?? "";
    grid.draw({ model, setting, chosen, hot: view.row?.layer, effect: found?.byLayer, word, free });
    drawMake(context, { setting, model, free });
    const trouble = both && "trouble" in both ? both.trouble : undefined;
    tokens.draw(effect, found, effect.why ?? trouble ?? "Computing …");
    text.draw(context);
    return of ? sourceOf(of.effect, of.answers) : IN_GENERAL;
  },

  table: () => ({
    columns: ["layer", "part", "factor", "p of the chosen token without", "with"],
    rows: grid.numbers(state.interventions.setting, found?.byLayer),
  }),
};

/** The last result: {key, found}. @type {{key: string, found: EffectFound | null}} */
let last = { key: "", found: null };

/** @param {EffectAsked} effect @param {Both<FrameAnswer>} both */
function readOnce(effect, both) {
  if (last.key !== effect.key) last = { key: effect.key, found: readEffect(effect, both) };
  return last.found;
}

/** Select a place; the core sample focuses its layer. @param {string} place */
function choose(place) {
  if (place === chosen) return;
  chosen = place;
  focusRow({ layer: placeLayer(place), part: place.startsWith("mlp") ? 1 : 0 });
  changed("look");
}

// ---- steering and patching ---------------------------------------------------------------------

function buildMake() {
  const choices = newSegmented({
    legend: "Steering or patching",
    name: "look-reach",
    options: VIEWS,
    value: wanted,
    onChange(value) {
      wanted = value;
      changed("look");
    },
  });
  choices.classList.add("rc-views");
  counts = all(choices, "label").map((choice) => choice.appendChild(el("b")));
  make.append(choices);
  panes = [make.appendChild(el("div", "rc-pane")), make.appendChild(el("div", "rc-pane"))];
  steer = new SteerPanel(panes[0]);
  patch = new PatchPanel(panes[1], () => changed("look"));
}

/** @param {Focus} context @param {{setting: Setting, model: ToPage.PageModelInfo, free: boolean}} now */
function drawMake(context, { setting, model, free }) {
  [setting.steer, setting.patch].forEach(({ length }, i) => {
    panes[i].hidden = VIEWS[i][0] !== wanted;
    setText(counts[i], length ? String(length) : "");
  });
  steer.draw({ setting, model, free });
  const acting = shownAnswer(lastTurn())?.segment?.interventions?.patch ?? [];
  /** @param {PatchEntry} one */
  const isActive = (one) =>
    acting.some((each) => sameInterventions({ patch: [each] }, { patch: [one] }));
  patch.draw({ setting, model, free, target: targetOf(context), isActive });
}

/**
 * Return the focused token as a place to patch, or {why} it cannot be.
 *
 * @param {Focus} focus
 * @returns {PatchTarget}
 */
function targetOf({ answer, token, index }) {
  if (!token || index === null) return { why: "No answer yet. A patch replaces one of its tokens." };
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
