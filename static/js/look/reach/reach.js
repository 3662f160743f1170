// Reach in: heads, attention, MLPs and whole layers are switched off or scaled, the stream is
// steered and patched, while the text is written; and what that did is asked about one token.

import { el } from "../dom.js";
import { tokenLabel } from "../format.js";
import { same } from "../reach.js";
import * as desk from "../reachdesk.js";
import { factorOf, isClear } from "../reachsetting.js";
import { canRewrite, rewrite } from "../rewrite.js";
import { changed, lastTurn, shownAnswer, state } from "../state.js";
import { view } from "../view.js";
import { Missing, sequenceOf } from "./context.js";
import { ReachBar } from "./reachbar.js";
import { effectOf, measured, readEffect, sourceOf } from "./reacheffect.js";
import { layerOfPlace, ReachGrid } from "./reachgrid.js";
import { ReachPatch } from "./reachpatch.js";
import { saysOf } from "./reachsays.js";
import { ReachSteer } from "./reachsteer.js";
import { ReachText } from "./reachtext.js";
import { ReachTokens } from "./reachtokens.js";

const IN_GENERAL =
  "A factor of 1 leaves alone, bit for bit. A change acts within the steps in flight.";
const VIEWS = { steer: "Steer", patch: "Patch" };

let bar = null;
let grid = null;
let steer = null;
let patch = null;
let tokens = null;
let text = null;
let make = null;
let wanted = "steer";
/** The place in the grid that is chosen. */
let chosen = "head 0.0";
/** What the last `show` measured: `readEffect`, or null. */
let found = null;

export const reach = {
  needs: "nothing",

  setUp(root) {
    bar = new ReachBar(root, {
      scale: (factor, gesture) => desk.setFactor(chosen, factor, gesture),
      toGrid: () => grid.focus(chosen),
      undo: desk.undo,
      redo: desk.redo,
      reset: desk.reset,
      again: rewrite,
    });
    const parts = root.appendChild(el("div", "rc-parts"));
    grid = new ReachGrid(parts, {
      choose,
      toggle: desk.toggle,
      scale: desk.setFactor,
      factor: (place) => factorOf(state.reach.setting, place),
      type: (place, character) => bar.type(character),
    });
    make = parts.appendChild(el("section", "rc-make"));
    buildMake();
    const next = parts.appendChild(el("section", "rc-next"));
    next.tabIndex = 0; // whoever scrolls by keyboard has to get there
    next.setAttribute("aria-label", "What it does to the next token");
    tokens = new ReachTokens(next);
    text = new ReachText(root);
  },

  show(context) {
    const { model } = context.hello;
    const { setting, past, future } = state.reach;
    const free = !state.replay;
    if (layerOfPlace(chosen) >= model.n_layers) chosen = "head 0.0";
    const effect = effectOf(context);
    const both = effect.why ? null : measured(effect);
    found = both?.without ? readOnce(effect, both) : null;
    bar.draw({
      chosen,
      factor: factorOf(setting, chosen),
      said: saysOf(),
      can: {
        undo: free && past.length,
        redo: free && future.length,
        reset: free && !isClear(setting),
        again: canRewrite(),
      },
      free,
    });
    const word = found ? effect.name : "";
    grid.draw({ model, setting, chosen, hot: view.row?.layer, effect: found?.byLayer, word, free });
    drawMake(context, { setting, model, free });
    tokens.draw(effect, found, effect.why ?? both?.trouble ?? "Asking …");
    text.draw(context);
    return found ? sourceOf(effect, both) : IN_GENERAL;
  },

  table: () => ({
    columns: ["layer", "part", "factor", "share of the written token without", "with"],
    rows: grid.numbers(state.reach.setting, found?.byLayer),
  }),
};

/** What was read last: {key, found}. */
let last = { key: "" };

function readOnce(effect, both) {
  if (last.key !== effect.key) last = { key: effect.key, found: readEffect(effect, both) };
  return last.found;
}

/** The core marks the layer of the place that is chosen. */
function choose(place) {
  if (place === chosen) return;
  chosen = place;
  view.row = { layer: layerOfPlace(place), part: place.startsWith("mlp") ? 1 : 0 };
  view.hoverRow = null;
  changed("focus", "look");
}

// ---- steering and patching -----------------------------------------------------------------------

function buildMake() {
  const choices = el("fieldset", "seg rc-views");
  choices.append(el("legend", "vh", "What to add to the stream"));
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
  steer = new ReachSteer(make.appendChild(el("div", "rc-pane")));
  patch = new ReachPatch(make.appendChild(el("div", "rc-pane")), () => changed("look"));
}

function drawMake(context, { setting, model, free }) {
  const [choices, ...panes] = make.children;
  Object.keys(VIEWS).forEach((name, i) => {
    panes[i].hidden = name !== wanted;
    const n = setting[name].length;
    choices.querySelectorAll("b")[i].textContent = n ? String(n) : "";
  });
  steer.draw({ setting, model, free });
  const acting = shownAnswer(lastTurn())?.segment?.reach?.patch ?? [];
  const inForce = (one) => acting.some((each) => same({ patch: [each] }, { patch: [one] }));
  patch.draw({ setting, model, free, target: targetOf(context), inForce });
}

/** The focused token as a place to patch, or {why} it is none. */
function targetOf({ answer, token, index }) {
  if (!token) return { why: "First write something: a patch is of one of its tokens." };
  if (answer !== shownAnswer(lastTurn())) return { why: "Only tokens of the newest answer can be patched." };
  try {
    const { position, texts } = sequenceOf({ answer, token, index });
    return { position, at: index < 0 ? null : index, token, here: tokenLabel(texts[position], "·") };
  } catch (error) {
    if (!(error instanceof Missing)) throw error;
    return { why: error.message };
  }
}
