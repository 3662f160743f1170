"""A page to which everything comes late, as on a busy machine: frames, messages, what it sends.

A test that reads the page before it has drawn, or the line before it has sent, passes on most runs.
With these held back it fails on every one: `pytest e2e --late 120`, in milliseconds.
"""

from __future__ import annotations

from playwright.sync_api import BrowserContext

# All keeps its order, as timers of one length end as they began; and a frame can be cancelled.
HOLD_BACK = """(() => {
  const frame = window.requestAnimationFrame.bind(window);
  const cancel = window.cancelAnimationFrame.bind(window);
  const frames = new Map();
  let last = 0;
  window.requestAnimationFrame = (draw) => {
    const id = (last += 1);
    const shown = (now) => frames.delete(id) && draw(now);
    const late = () => frames.set(id, { asked: frame(shown) });
    frames.set(id, { timer: setTimeout(late, MS) });
    return id;
  };
  window.cancelAnimationFrame = (id) => {
    const { timer, asked } = frames.get(id) ?? {};
    clearTimeout(timer);
    if (asked) cancel(asked);
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


def hold_back(context: BrowserContext, milliseconds: int) -> None:
    """Do so on every page of `context` that is opened from now on."""
    context.add_init_script(HOLD_BACK.replace("MS", str(milliseconds)))
