// Pointer and keyboard in the sampling waterfall.

import { clamp } from "../../ui/dom.js";
import { percent, plural } from "../../ui/format.js";
import { FILTERS } from "../../settings/sampling-settings.js";
import { step } from "../../view.js";
import { FlowPicture } from "./draw.js";
import { bandAt } from "./flow.js";

/** The listed tokens. @param {FlowNow} now */
const tokensOf = ({ flow }) => flow.bands.filter(({ id }) => id !== null);

export class FlowPlot {
  /**
   * `onLight()` is called when another token is highlighted or the picture has changed.
   *
   * @param {HTMLCanvasElement} canvas
   * @param {() => void} onLight
   */
  constructor(canvas, onLight) {
    this.canvas = canvas;
    this.onLight = onLight;
    this.picture = new FlowPicture(canvas);
    /** Id of the highlighted token, or null. @type {number | null} */
    this.lit = null;
    /** @type {FlowNow | null} */
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

  /** @param {FlowNow} now */
  show(now) {
    if (this.now?.token !== now.token) this.lit = null;
    this.now = now;
    this.#draw(now);
  }

  /** Highlight a token; null: the drawn one. @param {number | null} id */
  light(id) {
    if (id === this.lit) return;
    this.lit = id;
    if (this.now) this.#draw(this.now);
  }

  /** @param {FlowNow} now */
  #draw(now) {
    const { flow, real, token, nameOf } = now;
    this.picture.draw({ flow, real, picked: token.id, lit: this.lit, nameOf });
    this.#describe(now);
    this.onLight();
  }

  /** @param {PointerEvent} event */
  #onPoint({ offsetX, offsetY }) {
    const at = this.picture.at(offsetX, offsetY);
    const band = this.now && at ? bandAt(this.now.flow, at.column, at.share) : null;
    this.light(band?.id ?? null);
  }


  /**
   * Up and down select a token of the picture, left and right another token of the text.
   *
   * @param {KeyboardEvent} event
   */
  #onKey(event) {
    if (!this.now || event.ctrlKey || event.metaKey || event.altKey) return;
    const tokens = tokensOf(this.now);
    const own = this.lit ?? this.now.token.id;
    const at = tokens.findIndex(({ id }) => id === own);
    /** @type {Record<string, number>} */
    const keys = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: tokens.length - 1 };
    const to = keys[event.key];
    const along = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (to === undefined && !along) return;
    event.preventDefault();
    if (along) step(along);
    else this.light(tokens[clamp(to, 0, tokens.length - 1)].id);
  }

  /** @param {FlowNow} now */
  #describe(now) {
    const tokens = tokensOf(now);
    const { token, nameOf } = now;
    const at = tokens.findIndex(({ id }) => id === (this.lit ?? token.id));
    /** @param {string} name @param {string | number} value */
    const say = (name, value) => this.canvas.setAttribute(`aria-${name}`, String(value));
    say("valuemin", 1);
    say("valuemax", tokens.length);
    say("valuenow", at + 1);
    say("valuetext", at < 0 ? "" : describe(tokens[at], nameOf(tokens[at])));
  }
}

/** @param {Band} band @param {string} name */
function describe({ sizes, cut, low, high, seen, written }, name) {
  /** @param {number} column */
  const of = (column) => `${percent(sizes[column])} per cent`;
  const start = `${name}, ${of(0)} of the raw logits, ${of(2)} after temperature`;
  const again = written
    ? `, written ${plural(written, "time")} before`
    : seen
      ? ", in the context before"
      : "";
  if (cut) return `${start}, cut by ${FILTERS[cut - 1].label}${again}`;
  if (low === null || high === null) return `${start}${again}`;
  const place = `${low.toFixed(3)} to ${high.toFixed(3)}`;
  return `${start}, ${percent(high - low)} per cent in the draw, ${place}${again}`;
}
