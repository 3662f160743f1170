// Theme colours for canvases: the custom properties of tokens.css, resolved.

const NAMES = /** @type {const} */ ([
  "ground", "plate", "side", "ink", "ink-2", "ink-3", "line", "edge", "lamp", "lamp-wash", "data",
  "data-2", "bad", "good",
]);
const STOPS = 9;
const STEPS = 64;

/**
 * Colours by name; `map`: STEPS colours of the sequential scale; `pixels`: the same for images.
 *
 * @type {Record<(typeof NAMES)[number], string> & {map: string[], pixels: Uint32Array}}
 */
export const palette = {
  .../** @type {Record<(typeof NAMES)[number], string>} */ ({}),
  map: [],
  pixels: new Uint32Array(STEPS),
};

const probe = document.createElement("i");

/** Resolve the colours; call after the theme changed. */
export function readPalette() {
  document.body.append(probe);
  probe.className = "vh";
  for (const name of NAMES) palette[name] = resolve(name);
  const stops = Array.from({ length: STOPS }, (_, i) => channelsOf(resolve(`m${i}`)));
  palette.map = Array.from({ length: STEPS }, (_, n) => {
    const at = (n / (STEPS - 1)) * (STOPS - 1);
    const k = Math.min(STOPS - 2, Math.floor(at));
    const mixed = stops[k].map((c, j) => Math.round(c + (stops[k + 1][j] - c) * (at - k)));
    return `rgb(${mixed.slice(0, 3)})`;
  });
  palette.pixels = Uint32Array.from(palette.map, pixelOf);
}

/** @param {string} name */
function resolve(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** @param {string} colour */
function channelsOf(colour) {
  const channels = colour.match(/[\d.]+/g);
  if (!channels) throw new Error(`${colour} is not a colour`);
  return channels.map(Number);
}

/**
 * Return "rgb(1, 2, 3)" as a pixel of an image, in the machine's byte order.
 *
 * @param {string} colour
 */
export function pixelOf(colour) {
  const [r, g, b] = channelsOf(colour);
  return new Uint32Array(new Uint8ClampedArray([r, g, b, 255]).buffer)[0];
}

/** @param {number} value */
const stepOf = (value) => Math.round(Math.min(1, Math.max(0, value)) * (STEPS - 1));

/** Colour of a value in [0, 1], as CSS and as a pixel. @param {number} value */
export const shade = (value) => palette.map[stepOf(value)];
/** @param {number} value */
export const shadePixel = (value) => palette.pixels[stepOf(value)];
