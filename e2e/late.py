"""Delay of a page's animation frames and WebSocket messages, as on a busy machine.

A test that does not wait for the page to draw or send passes on most runs; with this delay it
always fails. Usage: `pytest e2e --late 120`, in milliseconds.
"""

from __future__ import annotations

from playwright.sync_api import BrowserContext

# The order is kept, because timers of equal length fire in the order of their start.
DELAY = """(() => {
  const frame = window.requestAnimationFrame.bind(window);
  const cancel = window.cancelAnimationFrame.bind(window);
  const frames = new Map();
  let last = 0;
  window.requestAnimationFrame = (draw) => {
    const id = (last += 1);
    const shown = (now) => frames.delete(id) && draw(now);
    const late = () => frames.set(id, { requested: frame(shown) });
    frames.set(id, { timer: setTimeout(late, MS) });
    return id;
  };
  window.cancelAnimationFrame = (id) => {
    const { timer, requested } = frames.get(id) ?? {};
    clearTimeout(timer);
    if (requested) cancel(requested);
    frames.delete(id);
  };

  const socket = WebSocket.prototype;
  for (const name of ["onopen", "onmessage", "onclose"]) {
    const own = Object.getOwnPropertyDescriptor(socket, name);
    const set = function (listener) {
      own.set.call(this, (event) => setTimeout(() => listener.call(this, event), MS));
    };
    Object.defineProperty(socket, name, { ...own, set });
  }
  const { send } = socket;
  socket.send = function (data) {
    setTimeout(() => this.readyState === WebSocket.OPEN && send.call(this, data), MS);
  };
})()"""


def delay_page(context: BrowserContext, milliseconds: int) -> None:
    """Delay every page of `context` that is opened from now on."""
    context.add_init_script(DELAY.replace("MS", str(milliseconds)))
