// @ts-nocheck
// Pointer and keyboard in the sampling waterfall.

import { clamp } from "../../ui/dom.js";
import { percent, plural } from "../../ui/format.js";
import { FILTERS } from "../../settings/sampling-settings.js";
import { step } from "../../view.js";
import { FlowPicture } from "./draw.js";
import { bandAt } from "./flow.js";

export class FlowPlot {
  /** `onLight()` is called when another token is highlighted or the picture has changed. */
  constructor(canvas, onLight) {
    this.canvas = canvas;
    this.onLight = onLight;
    this.picture = new FlowPicture(canvas);
    /** Id of the highlighted token, or null. */
    this.lit = null;
    this.now = null;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "slider");
    canvas.setAttribute("aria-label", "Token in the waterfall");
    canvas.setAttribute("aria-orientation", "vertical");
    canvas.addEventListener("pointermove", (event) => this.#onPoint(event));
    canvas.addEventListener("pointerdown", (event) => this.#onPoint(event));
    canvas.addEventListener("pointerleave", () => this.light(null));
    canvas.addEventListener("blur", () => this.light(null));
    canvas.addEventListener("keydown", (event) => this.#onKey(event));
  }

  show(now) {
    if (this.now?.token !== now.token) this.lit = null;
    this.now = now;
    this.#draw();
  }

  /** Highlight a token; null: the drawn one. */
  light(id) {
    if (id === this.lit) return;
    this.lit = id;
    if (this.now) this.#draw();
  }

  #draw() {
    const { flow, real, token, nameOf } = this.now;
    this.picture.draw({ flow, real, picked: token.id, lit: this.lit, nameOf });
    this.#describe();
    this.onLight();
  }

  #onPoint({ offsetX, offsetY }) {
    const at = this.now && this.picture.at(offsetX, offsetY);
    this.light(at ? (bandAt(this.now.flow, at.column, at.share)?.id ?? null) : null);
  }

  get #tokens() {
    return this.now.flow.bands.filter(({ id }) => id !== null);
  }

  /** Up and down select a token of the picture, left and right another token of the text. */
  #onKey(event) {
    if (!this.now || event.ctrlKey || event.metaKey || event.altKey) return;
    const tokens = this.#tokens;
    const at = tokens.findIndex(({ id }) => id === (this.lit ?? this.now.token.id));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: tokens.length - 1 }[event.key];
    const along = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (to === undefined && along === undefined) return;
    event.preventDefault();
    if (along) step(along);
    else this.light(tokens[clamp(to, 0, tokens.length - 1)].id);
  }

  #describe() {
    const tokens = this.#tokens;
    const { token, nameOf } = this.now;
    const at = tokens.findIndex(({ id }) => id === (this.lit ?? token.id));
    const say = (name, value) => this.canvas.setAttribute(`aria-${name}`, value);
    say("valuemin", 1);
    say("valuemax", tokens.length);
    say("valuenow", at + 1);
    say("valuetext", at < 0 ? "" : describe(tokens[at], nameOf(tokens[at])));
  }
}

function describe({ sizes, cut, low, high, seen, written }, name) {
  const of = (column) => `${percent(sizes[column])} per cent`;
  const start = `${name}, ${of(0)} of the raw logits, ${of(2)} after temperature`;
  const again = written
    ? `, written ${plural(written, "time")} before`
    : seen
      ? ", in the context before"
      : "";
  if (cut) return `${start}, cut by ${FILTERS[cut - 1].label}${again}`;
  const place = `${low.toFixed(3)} to ${high.toFixed(3)}`;
  return `${start}, ${percent(high - low)} per cent in the draw, ${place}${again}`;
}
