"""Finds what is broken in the layout of a page: texts, controls and labels of canvases."""

from __future__ import annotations

from playwright.sync_api import Page

RECORD_CANVAS_TEXTS = """
// Keep what is written on each canvas, as corners in its own pixels, until it is erased.
const texts = new WeakMap();
window.textsOf = (canvas) => (texts.get(canvas) ?? [])
  .filter(({ wide, high }) => wide === canvas.width && high === canvas.height);
const proto = CanvasRenderingContext2D.prototype;
const { fillText, clearRect } = proto;
const box = (context, x, y, w, h) => {
  const at = [[x, y], [x + w, y], [x, y + h], [x + w, y + h]]
    .map(([px, py]) => context.getTransform().transformPoint(new DOMPoint(px, py)));
  const [xs, ys] = [at.map((p) => p.x), at.map((p) => p.y)];
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  return { left, top, right: Math.max(...xs), bottom: Math.max(...ys) };
};
proto.fillText = function (text, x, y, ...rest) {
  const m = this.measureText(text);
  const [w, up] = [m.actualBoundingBoxLeft + m.actualBoundingBoxRight, m.actualBoundingBoxAscent];
  const rect = box(this, x - m.actualBoundingBoxLeft, y - up, w, up + m.actualBoundingBoxDescent);
  const { width: wide, height: high } = this.canvas;
  if (String(text).trim())
    texts.set(this.canvas, [...textsOf(this.canvas), { text: `${text}`, rect, wide, high }]);
  return fillText.call(this, text, x, y, ...rest);
};
proto.clearRect = function (x, y, w, h) {
  const gone = box(this, x, y, w, h);
  const out = ({ rect: r }) =>
    r.left >= gone.right || r.right <= gone.left || r.top >= gone.bottom || r.bottom <= gone.top;
  texts.set(this.canvas, textsOf(this.canvas).filter(out));
  return clearRect.call(this, x, y, w, h);
};
"""
"""Script to run before those of the page: `textsOf(canvas)` lists what is written on it."""

FAULTS = """(scope) => {
  const NARROWEST = 40; // of a text that does not fit, in px
  const LOWEST = 40; // of what is scrolled up and down
  const root = document.querySelector(scope);
  const seen = (node) => !node.closest(".vh, .skip") &&
    getComputedStyle(node).clipPath === "none" && node.checkVisibility({
      opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true });
  const named = (node) => node.id ? `#${node.id}`
    : `${node.localName}${[...node.classList].map((name) => `.${name}`).join("")}`;
  const path = (node) => [node.parentElement?.closest("[id], [class]"), node]
    .filter(Boolean).map(named).join(" ");
  const meet = (a, b) => ({ left: Math.max(a.left, b.left), right: Math.min(a.right, b.right),
    top: Math.max(a.top, b.top), bottom: Math.min(a.bottom, b.bottom) });
  const some = (r) => r.right - r.left > 1 && r.bottom - r.top > 1;
  const opaque = (node) => /^rgb\\(|^color\\([^/]*\\)$|^oklab\\([^/]*\\)$/
    .test(getComputedStyle(node).backgroundColor);

  const soft = (node) => getComputedStyle(node).maskImage !== "none";
  /** Is `node` in what can be scrolled sideways? */
  const scrolls = (node) => {
    for (let at = node; at; at = at.parentElement)
      if (at.scrollWidth > at.clientWidth && /auto|scroll/.test(getComputedStyle(at).overflowX))
        return true;
    return false;
  };

  /** The part of a rectangle in `node` that its ancestors show, and who cuts the rest off. */
  const shown = (node, rect) => {
    let cutter = null;
    let fixed = false;
    let free = false; // of ancestors that do not position it
    for (let at = node; at && at !== document.body && !fixed; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (at !== node && free && style.position === "static") continue;
      free = style.position === "absolute";
      fixed = style.position === "fixed";
      if (style.overflowX === "visible" && style.overflowY === "visible") continue;
      if (style.display === "inline") continue;
      if (soft(at)) return { rect: meet(rect, at.getBoundingClientRect()), cutter: null };
      const edge = at.getBoundingClientRect();
      const part = meet(rect, edge);
      // A part without room is left out (setParts of dom.js).
      if (at.matches(".one-line") && !some(part)) return { rect: part, cutter: null };
      if (rect.right - part.right > 2 || part.left - rect.left > 2) {
        const soft = style.textOverflow === "ellipsis" || /auto|scroll/.test(style.overflowX);
        if (!soft) cutter ??= at;
      }
      if (rect.bottom - part.bottom > 4 || part.top - rect.top > 4) {
        const soft = style.webkitLineClamp !== "none" || /auto|scroll/.test(style.overflowY);
        if (!soft) cutter ??= at;
      }
      rect = part;
    }
    return { rect, cutter };
  };

  const faults = new Map();
  /** Report one fault of a kind and place. */
  const report = (kind, where, text = "") => {
    const key = `${kind}: ${where}`;
    if (!faults.has(key)) faults.set(key, text.slice(0, 60));
  };
  const texts = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const blocks = new Map();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const owner = node.parentElement;
    const text = node.data.trim();
    if (!text || !seen(owner)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const half = 0.36 * parseFloat(getComputedStyle(owner).fontSize);
    for (const box of range.getClientRects()) {
      if (box.width < 1) continue;
      const { rect, cutter } = shown(owner, box);
      if (cutter) report("cut", `${path(owner)} by ${path(cutter)}`, text);
      const middle = (box.top + box.bottom) / 2;
      const ink = meet(rect, { ...rect, left: rect.left, right: rect.right,
        top: middle - half, bottom: middle + half });
      if (!some(ink)) continue;
      texts.push({ owner, text, rect: ink });
      let block = owner;
      while (/^inline|contents/.test(getComputedStyle(block).display)) block = block.parentElement;
      // All of its text: of that in several nodes the last may be cut, which is no fault.
      const all = document.createRange();
      all.selectNodeContents(block);
      const whole = all.getBoundingClientRect();
      const own = meet(whole, block.getBoundingClientRect());
      if (own.right - own.left < Math.min(NARROWEST, whole.width - 2) &&
          getComputedStyle(block).overflowX === "hidden")
        report("narrow", path(owner), text);
      const lines = blocks.get(block) ?? blocks.set(block, new Set()).get(block);
      lines.add(Math.round(middle / 4));
    }
  }
  for (const select of root.querySelectorAll("select")) {
    if (!seen(select)) continue;
    const { rect } = shown(select, select.getBoundingClientRect());
    const text = select.selectedOptions[0]?.text ?? "";
    if (some(rect)) texts.push({ owner: select, text, rect });
  }
  for (const [block, lines] of blocks)
    if (lines.size > 1 && block.clientWidth < NARROWEST && block.clientWidth)
      report("narrow", path(block), block.textContent.trim());
  for (const canvas of root.querySelectorAll("canvas")) {
    if (!seen(canvas)) continue;
    const frame = canvas.getBoundingClientRect();
    const ratio = canvas.width / frame.width;
    for (const { text, rect: r } of textsOf(canvas)) {
      const out = Math.max(-r.left, -r.top, r.right - canvas.width, r.bottom - canvas.height);
      if (out > 2 * ratio && !scrolls(canvas)) report("cut", `${path(canvas)} by its edge`, text);
      const { rect } = shown(canvas, { left: frame.left + r.left / ratio,
        right: frame.left + r.right / ratio, top: frame.top + r.top / ratio,
        bottom: frame.top + r.bottom / ratio });
      if (some(rect)) texts.push({ owner: canvas, text, rect });
    }
  }

  // ---- texts over texts --------------------------------------------------------------------
  const all = new CSSStyleSheet();
  all.replaceSync("* { pointer-events: auto !important }");
  document.adoptedStyleSheets.push(all);
  /** Does the text on top stand on a background of its own, or is something over both? */
  const apart = (a, b, { left, right, top, bottom }) => {
    const hit = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
    if (!hit) return true;
    for (let at = hit; at; at = at.parentElement) {
      const [holdsA, holdsB] = [at.contains(a.owner), at.contains(b.owner)];
      if (holdsA && holdsB) return false;
      if (opaque(at)) return true;
    }
    return false;
  };
  texts.sort((a, b) => a.rect.top - b.rect.top);
  texts.forEach((a, i) => {
    for (let j = i + 1; j < texts.length && texts[j].rect.top < a.rect.bottom - 1; j += 1) {
      const b = texts[j];
      const both = meet(a.rect, b.rect);
      if (!some(both) || (a.owner === b.owner && a.text === b.text) || apart(a, b, both)) continue;
      const where = `${path(a.owner)} and ${path(b.owner)}`;
      report("overlap", where, `${a.text.slice(0, 30)} | ${b.text}`);
    }
  });
  document.adoptedStyleSheets.pop();

  // ---- controls ----------------------------------------------------------------------------
  const scrolled = new Map();
  const focused = document.activeElement;
  const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex='0'], [role=tab]";
  for (const control of root.querySelectorAll(CONTROLS)) {
    if (control.closest(".vh, .skip, [inert], [hidden], [aria-hidden=true]")) continue;
    if (control.type === "file" || !control.checkVisibility({ visibilityProperty: true })) continue;
    for (let at = control; at; at = at.parentElement)
      if (!scrolled.has(at)) scrolled.set(at, [at.scrollLeft, at.scrollTop]);
    control.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    // What is shown where the pointer is, is shown to the keyboard too.
    if (getComputedStyle(control).pointerEvents === "none") control.focus({ preventScroll: true });
    const box = control.getClientRects()[0];
    if (!box?.width || !box.height) { report("no size", path(control)); continue; }
    const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    const hit = document.elementFromPoint(x, y);
    if (control.contains(hit) || hit?.closest("label")?.control === control) continue;
    const words = control.getAttribute("aria-label") ?? control.textContent.trim();
    const where = hit ? `under ${path(hit)}` : "outside the window";
    report("out of reach", `${path(control)} ${where}`, words);
  }
  if (document.activeElement !== focused) focused.focus({ preventScroll: true });
  for (const [node, [left, top]] of scrolled) {
    if (node.scrollLeft !== left) node.scrollLeft = left;
    if (node.scrollTop !== top) node.scrollTop = top;
  }
  for (const node of root.querySelectorAll("*")) {
    const { overflowY } = getComputedStyle(node);
    const { clientHeight: high, scrollHeight: all } = node;
    if (/auto|scroll/.test(overflowY) && all > high + 8 && high < LOWEST && seen(node) &&
        node.localName !== "textarea") report("squeezed", path(node), `${high} of ${all} px`);
  }
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) {
    const beyond = (node) => node.getBoundingClientRect().right > clientWidth + 1;
    for (const node of root.querySelectorAll("*"))
      if (beyond(node) && seen(node) && !scrolls(node.parentElement))
        report("too wide", path(node), `${scrollWidth - clientWidth} px`);
  }
  return [...faults].map(([what, text]) => `${what} "${text}"`);
}"""


def layout_faults(page: Page, scope: str = "body") -> list[str]:
    """Return a line for each overlap, cut or squeezed text and control out of reach in `scope`.

    The page must have run `RECORD_CANVAS_TEXTS`.
    """
    faults: list[str] = page.evaluate(FAULTS, scope)
    return faults
