// Vectors as points: cosines, and the plane in which they differ most (principal component analysis).

import { fitCanvas, setAttr } from "../../ui/dom.js";
import { palette } from "../../ui/palette.js";
import { label, labelWidth, rule } from "../shared/chart.js";

const MARGIN = 20;
/** Height of the caption below. */
const BOTTOM = 24;
const RADIUS = 4;
/** Most characters of a label. */
const MAX_LABEL = 200;
const LINE_HEIGHT = 14;
const MAX_STEPS = 2000;
/** Change of a direction between two steps at which it is found. */
const ENOUGH = 1e-12;

/** @param {number[]} a @param {number[]} b */
const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

/** @param {number[]} a @param {number[]} b */
export const cosine = (a, b) => dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);

/**
 * Return the coordinates of vectors along their two principal components, and the shares of the variance
 * that these have. The components come from the products of the centred vectors with each other, of which
 * there are few (Gower 1966); the farthest point of each has a positive coordinate.
 *
 * @param {number[][]} vectors
 * @returns {PrincipalPlane}
 */
export function planeOf(vectors) {
  const n = vectors.length;
  const mean = vectors[0].map((_, d) => vectors.reduce((sum, vector) => sum + vector[d], 0) / n);
  const centred = vectors.map((vector) => vector.map((value, d) => value - mean[d]));
  const products = centred.map((a) => centred.map((b) => dot(a, b)));
  const variance = products.reduce((sum, row, i) => sum + row[i], 0);
  const axes = [0, 1].map(() => {
    const direction = mainDirection(products);
    const size = Math.max(0, dot(direction, times(products, direction)));
    for (const [i, row] of products.entries())
      row.forEach((_, j) => (row[j] -= size * direction[i] * direction[j]));
    const farthest = direction.reduce((most, value) => (Math.abs(value) > Math.abs(most) ? value : most), 0);
    const scale = Math.sqrt(size) * (farthest < 0 ? -1 : 1);
    return { along: direction.map((value) => value * scale), share: variance > 0 ? size / variance : 0 };
  });
  return {
    points: vectors.map((_, i) => [axes[0].along[i], axes[1].along[i]]),
    shares: [axes[0].share, axes[1].share],
  };
}

/** @param {number[][]} matrix @param {number[]} vector */
const times = (matrix, vector) => matrix.map((row) => dot(row, vector));

/**
 * Return the unit eigenvector with the largest eigenvalue of a symmetric matrix without negative ones, by
 * power iteration from the column of the largest diagonal element.
 *
 * @param {number[][]} matrix
 */
function mainDirection(matrix) {
  const start = matrix.reduce((best, row, i) => (row[i] > matrix[best][best] ? i : best), 0);
  let direction = unit(matrix[start]);
  for (let step = 0; step < MAX_STEPS; step += 1) {
    const next = unit(times(matrix, direction));
    const change = next.reduce((sum, value, i) => sum + Math.abs(value - direction[i]), 0);
    direction = next;
    if (change < ENOUGH) break;
  }
  return direction;
}

/** @param {number[]} vector */
function unit(vector) {
  const length = Math.sqrt(dot(vector, vector)) || 1;
  return vector.map((value) => value / length);
}

/**
 * Draw the points with their texts.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {string[]} texts
 * @param {PrincipalPlane} plane
 */
export function drawPlane(canvas, texts, { points, shares }) {
  const [context, width, height] = fitCanvas(canvas);
  const tall = height - BOTTOM;
  const scale = fittingScale(points, width, tall);
  const [middleX, middleY] = [width / 2, tall / 2];
  rule(context, MARGIN, middleY, width - 2 * MARGIN, 1);
  rule(context, middleX, MARGIN, 1, tall - 2 * MARGIN);
  const [across, up] = shares.map(inPercent);
  label(context, `across ${across} of the variance, up ${up}`, 0, height - BOTTOM / 2);
  /** Where labels are. @type {Rect[]} */
  const taken = [];
  for (const [i, point] of points.entries()) {
    const [x, y] = [middleX + point[0] * scale, middleY - point[1] * scale];
    context.beginPath();
    context.arc(x, y, RADIUS, 0, 2 * Math.PI);
    context.fillStyle = palette.lamp;
    context.fill();
    const isRight = labelWidth(context, texts[i]) < width - x - 8 || x < middleX;
    const text = fitting(context, texts[i], (isRight ? width - x : x) - 8);
    const wide = labelWidth(context, text);
    const left = isRight ? x + 8 : x - 8 - wide;
    let top = y - LINE_HEIGHT / 2;
    while (taken.some(([a, b, w]) => left < a + w && a < left + wide && Math.abs(b - top) < LINE_HEIGHT))
      top += LINE_HEIGHT;
    taken.push([left, top, wide, LINE_HEIGHT]);
    label(context, text, left, top + LINE_HEIGHT / 2, { colour: "ink" });
  }
  setAttr(canvas, "aria-label", `Plane of the two principal components: ${texts.join("; ")}.`);
}

/**
 * Return the text, shortened to a width.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} width
 */
function fitting(context, text, width) {
  const letters = [...text.slice(0, MAX_LABEL)];
  let shown = text.length > MAX_LABEL ? `${letters.join("")}…` : text;
  while (letters.length > 1 && labelWidth(context, shown) > width) {
    letters.pop();
    shown = `${letters.join("")}…`;
  }
  return shown;
}

/** @param {number} share */
const inPercent = (share) => `${Math.round(100 * share)} %`;

/** Return the pixels of a unit. @param {[number, number][]} points @param {number} width @param {number} height */
function fittingScale(points, width, height) {
  const [right, up] = [0, 1].map((axis) => Math.max(...points.map((point) => Math.abs(point[axis])), 1e-9));
  return Math.min((width / 2 - MARGIN) / right, (height / 2 - MARGIN) / up);
}
