// PNG export of a part of the page: boxes, borders, text, canvases and SVG are painted on a canvas.
//
// Browsers cannot capture an element, so this paints what instruments consist of: background and
// border colours, text at its position, canvases, and SVG with its computed styles.

import { contextOf } from "../../ui/dom.js";

/** @typedef {"Top" | "Bottom" | "Left" | "Right"} Side */

const MARGIN = 24;
const LINE = 20;
const MAX_SIDE = 8192;

/**
 * Return a PNG blob of `root`, including scrolled parts, below lines of text (the first bold). What is
 * hidden below a table is painted, too.
 *
 * @param {HTMLElement} root
 * @param {string[]} lines
 * @returns {Promise<Blob>}
 */
export async function paint(root, lines) {
  const origin = root.getBoundingClientRect();
  const width = Math.max(root.scrollWidth, 480);
  const head = broken(root, lines, width - 2 * MARGIN);
  const top = MARGIN + head.length * LINE + 12;
  const height = top + root.scrollHeight + MARGIN;
  const ratio = Math.min(2, MAX_SIDE / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = contextOf(canvas);
  context.scale(ratio, ratio);
  context.fillStyle = groundOf(root);
  context.fillRect(0, 0, width, height);
  context.fillStyle = getComputedStyle(root).color;
  head.forEach(({ font, text }, i) => {
    context.font = font;
    context.fillText(text, MARGIN, MARGIN + 12 + LINE * i);
  });
  context.translate(root.scrollLeft - origin.left, top - origin.top + root.scrollTop);
  const { visibility, opacity } = root.style;
  if (getComputedStyle(root).visibility === "hidden") Object.assign(root.style, { visibility: "visible", opacity: "0" });
  await paintInside(context, root, getComputedStyle(root)).finally(() => Object.assign(root.style, { visibility, opacity }));
  const blob = await new Promise((/** @type {BlobCallback} */ resolve) => canvas.toBlob(resolve));
  if (!blob) throw new Error("The picture is too large for this browser.");
  return blob;
}

/** @param {Element} node */
function groundOf(node) {
  for (let box = /** @type {Element | null} */ (node); box; box = box.parentElement) {
    const colour = getComputedStyle(box).backgroundColor;
    if (!isClear(colour)) return colour;
  }
  return "white";
}

/** @param {string} colour */
const isClear = (colour) => /^rgba\(.*, 0\)$/.test(colour) || colour === "transparent";

/**
 * Break `lines` at spaces to fit into `room`; returns rows with their fonts.
 *
 * @param {HTMLElement} root
 * @param {string[]} lines
 * @param {number} room
 */
function broken(root, lines, room) {
  const context = contextOf(document.createElement("canvas"));
  const { fontFamily } = getComputedStyle(root);
  return lines.flatMap((line, i) => {
    const font = `${i ? 400 : 600} ${i ? 12 : 15}px ${fontFamily}`;
    context.font = font;
    const rows = [""];
    for (const word of line.split(/(?<= )/)) {
      if (context.measureText(rows.at(-1) + word).width > room) rows.push("");
      rows[rows.length - 1] += word;
    }
    return rows.map((text) => ({ font, text }));
  });
}

/** @param {CanvasRenderingContext2D} context @param {Element} node */
async function paintElement(context, node) {
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden" || node.matches(".vh")) return;
  const box = node.getBoundingClientRect();
  context.save();
  context.globalAlpha *= Number(style.opacity);
  if (node instanceof SVGSVGElement) await paintSvg(context, node, box);
  else {
    paintBox(context, style, box);
    if (style.overflow !== "visible") clip(context, box);
    if (node instanceof HTMLCanvasElement) {
      if (node.width && node.height) context.drawImage(node, box.x, box.y, box.width, box.height);
    } else if (isText(node)) paintField(context, style, box, node.value);
    else await paintInside(context, node, style);
  }
  context.restore();
}

/**
 * Can its text be typed in?
 *
 * @param {Element} node
 * @returns {node is HTMLInputElement | HTMLTextAreaElement}
 */
const isText = (node) =>
  node.matches("textarea, input:not([type=radio], [type=checkbox], [type=range])");

/** @param {CanvasRenderingContext2D} context @param {Element} node @param {CSSStyleDeclaration} style */
async function paintInside(context, node, style) {
  for (const child of node.childNodes) {
    if (child instanceof Element) await paintElement(context, child);
    if (child instanceof Text) paintText(context, style, child);
  }
}

/**
 * Clip to a box: content scrolled out of view is not painted.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {DOMRect} box
 */
function clip(context, { x, y, width, height }) {
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
}

/** @param {CanvasRenderingContext2D} context @param {CSSStyleDeclaration} style @param {DOMRect} box */
function paintBox(context, style, { x, y, width, height }) {
  if (!isClear(style.backgroundColor)) {
    context.fillStyle = style.backgroundColor;
    context.fillRect(x, y, width, height);
  }
  /** @param {Side} name @param {Rect} rect */
  const side = (name, ...rect) => {
    if (style[`border${name}Style`] === "none" || isClear(style[`border${name}Color`])) return;
    context.fillStyle = style[`border${name}Color`];
    context.fillRect(...rect);
  };
  /** @param {Side} name */
  const edge = (name) => parseFloat(style[`border${name}Width`]);
  if (edge("Top")) side("Top", x, y, width, edge("Top"));
  if (edge("Bottom")) side("Bottom", x, y + height - edge("Bottom"), width, edge("Bottom"));
  if (edge("Left")) side("Left", x, y, edge("Left"), height);
  if (edge("Right")) side("Right", x + width - edge("Right"), y, edge("Right"), height);
}

/** @param {CanvasRenderingContext2D} context @param {CSSStyleDeclaration} style */
function setFont(context, style) {
  context.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  context.fillStyle = style.color;
}

/**
 * Paint text line by line, broken as on the page.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {CSSStyleDeclaration} style
 * @param {Text} node
 */
function paintText(context, style, node) {
  if (node.data.trim() === "") return;
  setFont(context, style);
  const range = document.createRange();
  /** @type {{text: string, box: DOMRect} | null} */
  let line = null;
  const flush = () => {
    if (line && line.text.trim() !== "") putText(context, line.text, line.box);
  };
  for (let i = 0; i < node.data.length; i += 1) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const box = range.getClientRects()[0];
    if (!box) continue;
    if (line && Math.abs(box.top - line.box.top) < 2) line.text += node.data[i];
    else {
      flush();
      line = { text: node.data[i], box };
    }
  }
  flush();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {{x: number, y: number, height: number}} box
 */
function putText(context, text, { x, y, height }) {
  const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = context.measureText(text);
  context.fillText(text, x, y + (height - up - down) / 2 + up);
}

/**
 * Paint the value of a field, which has no text node, broken at spaces.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {CSSStyleDeclaration} style
 * @param {DOMRect} box
 * @param {string} value
 */
function paintField(context, style, { x, y, width }, value) {
  setFont(context, style);
  const left = x + parseFloat(style.paddingLeft);
  const room = width - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const height = parseFloat(style.lineHeight) || 1.4 * parseFloat(style.fontSize);
  let top = y + parseFloat(style.paddingTop);
  for (const paragraph of value.split("\n")) {
    let line = "";
    for (const word of paragraph.split(/(?<= )/)) {
      if (line && context.measureText(line + word).width > room) {
        putText(context, line, { x: left, y: top, height });
        top += height;
        line = "";
      }
      line += word;
    }
    putText(context, line, { x: left, y: top, height });
    top += height;
  }
}

const SVG_STYLES = "fill stroke stroke-width stroke-dasharray opacity font text-anchor color".split(
  " ",
);

/**
 * Paint an SVG with its computed styles inlined, which it needs outside the page.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Element} node
 * @param {DOMRect} box
 */
async function paintSvg(context, node, box) {
  const copy = /** @type {Element} */ (node.cloneNode(true));
  const from = [node, ...node.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(from[i]);
    for (const name of SVG_STYLES) element.setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(box.width));
  copy.setAttribute("height", String(box.height));
  const image = new Image();
  const text = new XMLSerializer().serializeToString(copy);
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  await image.decode();
  context.drawImage(image, box.x, box.y, box.width, box.height);
}
