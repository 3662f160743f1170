// Colours for canvases: the custom properties of tokens.css, resolved for the theme of the moment.

const NAMES =
  "ground plate side ink ink-2 ink-3 line edge lamp lamp-wash data data-2 bad good".split(" ");
const STOPS = 9;
const STEPS = 64;

/** The colours by name, and `map`: STEPS colours from nothing to much. */
export const palette = { map: [] };

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
}

function resolve(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** The colour of a value on a scale from 0 to 1. */
export function shade(value) {
  return palette.map[Math.round(Math.min(1, Math.max(0, value)) * (STEPS - 1))];
}
