// Colours for canvases: the custom properties of tokens.css, resolved for the theme of the moment.

const NAMES =
  "ground plate side ink ink-2 ink-3 line edge lamp lamp-wash data data-2 bad good".split(" ");
const STOPS = 9;
const STEPS = 64;

/** The colours by name; `map`: STEPS colours from nothing to much; `pixels`: the same for images. */
export const palette = { map: [], pixels: new Uint32Array(STEPS) };

let probe = null;

/** Read the colours again; call after the theme changed. */
export function readPalette() {
  probe ??= document.body.appendChild(document.createElement("i"));
  probe.className = "vh";
  for (const name of NAMES) palette[name] = resolve(name);
  const stops = Array.from({ length: STOPS }, (_, i) =>
    resolve(`m${i}`)
      .match(/[\d.]+/g)
      .map(Number),
  );
  palette.map = Array.from({ length: STEPS }, (_, n) => {
    const at = (n / (STEPS - 1)) * (STOPS - 1);
    const k = Math.min(STOPS - 2, Math.floor(at));
    const mixed = stops[k].map((c, j) => Math.round(c + (stops[k + 1][j] - c) * (at - k)));
    return `rgb(${mixed.slice(0, 3)})`;
  });
  palette.pixels = Uint32Array.from(palette.map, pixelOf);
}

function resolve(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** "rgb(1, 2, 3)" as the pixel of an image, in the byte order of the machine. */
export function pixelOf(colour) {
  const [r, g, b] = colour.match(/[\d.]+/g).map(Number);
  return new Uint32Array(new Uint8ClampedArray([r, g, b, 255]).buffer)[0];
}

const stepOf = (value) => Math.round(Math.min(1, Math.max(0, value)) * (STEPS - 1));

/** The colour of a value on a scale from 0 to 1, and the same as a pixel. */
export const shade = (value) => palette.map[stepOf(value)];
export const shadePixel = (value) => palette.pixels[stepOf(value)];
