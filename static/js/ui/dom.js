// @ts-nocheck
// DOM helpers. Text from the model is inserted through `textContent` and text nodes only.

export const byId = (id) => document.getElementById(id);

/** Create an element with a class and, if given, text. */
export function el(tag, className = "", text = null) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== null) node.textContent = text;
  return node;
}

/** Create a button that calls `onClick`. */
export function newButton(text, onClick, className = "text") {
  const button = el("button", className, text);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

/** Set CSS custom properties; the content security policy forbids style attributes. */
export function setVars(node, values) {
  for (const name in values) node.style.setProperty(name, values[name]);
  return node;
}

/**
 * Set text only when it differs: writing equal text still costs a layout. An existing text node is
 * kept, because replacing it recomputes the styles around it.
 */
export function setText(node, text) {
  if (node.textContent === text) return;
  const only = node.firstChild;
  if (only?.nodeType === Node.TEXT_NODE && !only.nextSibling) only.data = text;
  else node.textContent = text;
}

/** Set an attribute only when it differs; null removes it. */
export function setAttr(node, name, value) {
  if (node.getAttribute(name) === value) return;
  if (value === null) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

/** Box sizes from a ResizeObserver: reading them from the DOM in a frame forces a layout. */
const sizes = new WeakMap();
let onResized = () => {};
const watcher = new ResizeObserver((entries) => {
  let resized = false;
  for (const { target } of entries) {
    const before = sizes.get(target);
    const now = [target.clientWidth, target.clientHeight];
    sizes.set(target, now);
    resized ||= before[0] !== now[0] || before[1] !== now[1];
  }
  if (resized) onResized();
});

/** Call `listener` whenever an element that `sizeOf` was asked about has a new size. */
export function watchSizes(listener) {
  onResized = listener;
}

/** Return [width, height] of an element in CSS pixels; only the first call forces a layout. */
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

export const clamp = (value, min, max) => Math.min(max, Math.max(min, value));
