// Small words for the DOM. Text from the model goes in through `textContent` and text nodes only.

export const byId = (id) => document.getElementById(id);

/** A new element with a class and, if given, text. */
export function el(tag, className = "", text = null) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== null) node.textContent = text;
  return node;
}

/** Set CSS custom properties (allowed under a policy that forbids style attributes). */
export function setVars(node, values) {
  for (const name in values) node.style.setProperty(name, values[name]);
  return node;
}

/**
 * Set text only when it differs: writing equal text still costs a layout. A text node that is there
 * keeps its place, for putting in another costs the styles around it.
 */
export function setText(node, text) {
  if (node.textContent === text) return;
  const only = node.firstChild;
  if (only?.nodeType === Node.TEXT_NODE && !only.nextSibling) only.data = text;
  else node.textContent = text;
}

/** Set an attribute only when it differs, null takes it away: for what is drawn in every frame. */
export function setAttr(node, name, value) {
  if (node.getAttribute(name) === value) return;
  if (value === null) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

/** Sizes of boxes as a ResizeObserver told them: asking the DOM in a frame costs a layout. */
const sizes = new WeakMap();
const watcher = new ResizeObserver((entries) => {
  for (const { target } of entries) sizes.set(target, [target.clientWidth, target.clientHeight]);
});

/** [width, height] of an element in CSS pixels, without asking for a layout after the first time. */
export function sizeOf(node) {
  if (!sizes.has(node)) {
    sizes.set(node, [node.clientWidth, node.clientHeight]);
    watcher.observe(node);
  }
  return sizes.get(node);
}

/** Size a canvas to its box in device pixels. Returns [context, width, height] in CSS pixels. */
export function fitCanvas(canvas) {
  const [width, height] = sizeOf(canvas);
  const ratio = devicePixelRatio || 1;
  const w = Math.round(width * ratio);
  const h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

/** Divide a `.split` bar in proportion to three numbers. */
export function splitBar(node, [first, second, third]) {
  const all = first + second + third || 1;
  setVars(node, { "--a": first / all, "--b": (first + second) / all });
}

export const clamp = (value, least, most) => Math.min(most, Math.max(least, value));
