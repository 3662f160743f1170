// DOM helpers. Text from the model is inserted through `textContent` and text nodes only.

/**
 * Return an element of the templates.
 *
 * @template {keyof ElementsById} Id
 * @param {Id} id
 * @returns {ElementsById[Id]}
 */
export const byId = (id) => /** @type {any} */ (document.getElementById(id));

/** @param {Element} node */
const asHtml = (node) => /** @type {HTMLElement} */ (node);

/**
 * Return the elements that a selector finds. All of the page's are HTML but its icons.
 *
 * @param {ParentNode} root
 * @param {string} selector
 * @returns {HTMLElement[]}
 */
export const all = (root, selector) => [...root.querySelectorAll(selector)].map(asHtml);

/**
 * Return the first element that a selector finds. Throws if there is none.
 *
 * @param {ParentNode} root
 * @param {string} selector
 */
export function one(root, selector) {
  const found = root.querySelector(selector);
  if (!found) throw new Error(`there is no ${selector}`);
  return asHtml(found);
}

/** Return the element that has the focus, or null. */
export const focusedElement = () => /** @type {HTMLElement | null} */ (document.activeElement);

/** Return the field that an event is about. @param {Event} event */
export const inputOf = (event) => /** @type {HTMLInputElement} */ (event.target);

/** Return the element that an event is about. @param {Event} event */
export const targetOf = (event) => /** @type {HTMLElement} */ (event.target);

/**
 * Create an element with a class and, if given, text.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} [className]
 * @param {string | null} [text]
 */
export function el(tag, className = "", text = null) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== null) node.textContent = text;
  return node;
}

/**
 * Create a button that calls `onClick`.
 *
 * @param {string} text
 * @param {(event: MouseEvent) => void} onClick
 * @param {string} [className]
 */
export function newButton(text, onClick, className = "text") {
  const button = el("button", className, text);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

/**
 * Set CSS custom properties; the content security policy forbids style attributes.
 *
 * @template {HTMLElement | SVGElement} Node
 * @param {Node} node
 * @param {Record<string, string | number>} values
 */
export function setVars(node, values) {
  for (const name in values) node.style.setProperty(name, String(values[name]));
  return node;
}

/**
 * Set text only when it differs: writing equal text still costs a layout. An existing text node is
 * kept, because replacing it recomputes the styles around it.
 *
 * @param {Element} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent === text) return;
  const only = node.firstChild;
  if (only instanceof Text && !only.nextSibling) only.data = text;
  else node.textContent = text;
}

/**
 * Set the text of a node of class `one-line` to parts on one line: those that do not fit are left out
 * (ui/base.css), so the first ones are the most important.
 *
 * @param {Element} node
 * @param {string[]} parts
 * @param {string} separator
 */
export function setParts(node, parts, separator) {
  const texts = parts.map((part, i) => (i ? separator + part : part));
  if (node.textContent !== texts.join("")) node.replaceChildren(...texts.map((text) => el("span", "", text)));
}

/**
 * Set an attribute only when it differs; null removes it.
 *
 * @param {Element} node
 * @param {string} name
 * @param {string | null} value
 */
export function setAttr(node, name, value) {
  if (node.getAttribute(name) === value) return;
  if (value === null) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

/**
 * Box sizes from a ResizeObserver: reading them from the DOM in a frame forces a layout.
 *
 * @type {WeakMap<Element, [number, number]>}
 */
const sizes = new WeakMap();
let onResized = () => {};
const watcher = new ResizeObserver((entries) => {
  let resized = false;
  for (const { target } of entries) {
    const before = sizes.get(target);
    /** @type {[number, number]} */
    const now = [target.clientWidth, target.clientHeight];
    sizes.set(target, now);
    resized ||= before?.[0] !== now[0] || before?.[1] !== now[1];
  }
  if (resized) onResized();
});

/**
 * Call `listener` whenever an element that `sizeOf` was asked about has a new size.
 *
 * @param {() => void} listener
 */
export function watchSizes(listener) {
  onResized = listener;
}

/**
 * Return [width, height] of an element in CSS pixels; only the first call forces a layout.
 *
 * @param {Element} node
 */
export function sizeOf(node) {
  const known = sizes.get(node);
  if (known) return known;
  /** @type {[number, number]} */
  const size = [node.clientWidth, node.clientHeight];
  sizes.set(node, size);
  watcher.observe(node);
  return size;
}

/**
 * Return the drawing context of a canvas.
 *
 * @param {HTMLCanvasElement} canvas
 */
export function contextOf(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("This browser cannot draw on a canvas.");
  return context;
}

/**
 * Size a canvas to its box in device pixels. Returns [context, width, height] in CSS pixels.
 *
 * @param {HTMLCanvasElement} canvas
 * @returns {[CanvasRenderingContext2D, number, number]}
 */
export function fitCanvas(canvas) {
  const [width, height] = sizeOf(canvas);
  const ratio = devicePixelRatio || 1;
  const w = Math.round(width * ratio);
  const h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = contextOf(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

/**
 * Show pairs of a name and a value in a list, whose rows are kept while their number is the same.
 *
 * @param {HTMLElement} list a `dl`
 * @param {string[][]} pairs
 */
export function drawPairs(list, pairs) {
  while (list.children.length > pairs.length) list.lastElementChild?.remove();
  while (list.children.length < pairs.length)
    list.appendChild(el("div")).append(el("dt"), el("dd"));
  pairs.forEach(([name, value], i) => {
    const [term, text] = list.children[i].children;
    setText(term, name);
    setText(text, value);
  });
}

/**
 * Divide a `.split` bar in proportion to three numbers.
 *
 * @param {HTMLElement} node
 * @param {number[]} parts
 */
export function splitBar(node, [first, second, third]) {
  const sum = first + second + third || 1;
  setVars(node, { "--a": first / sum, "--b": (first + second) / sum });
}

/**
 * @param {number} value
 * @param {number} min
 * @param {number} max
 */
export const clamp = (value, min, max) => Math.min(max, Math.max(min, value));
