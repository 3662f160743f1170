"""The page object of all browser tests: `Playground`, with a part for each room of the page."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from playwright.sync_api import Locator, Page, WebSocketRoute, expect

from e2e.conversations.drawer import Drawer
from e2e.interventions.reach import ReachPanel
from e2e.look.comparison import Comparison
from e2e.look.panel import LookPanel
from e2e.net.message_log import MessageLog
from e2e.replay.playback import Playback
from e2e.site import Site
from e2e.tour.card import TourCard
from e2e.waiting import TIMEOUT_MS, TWO_FRAMES

# Text of an answer without its change marks.
TEXT_OF = """(node) => {
  const copy = node.cloneNode(true);
  for (const mark of copy.querySelectorAll(".mark-change")) mark.remove();
  return copy.textContent;
}"""


LOAD_AS = """async (fields) => {
  const { setState, state } = await import("/static/js/state.js");
  setState({ hello: { ...state.hello, model: { ...state.hello.model, ...fields } } });
}"""


class Playground:
    """Page object of the playground of a site.

    Conversation, sampling and core sample are driven here, the rest by its parts: `look` (the
    panel of instruments), `reach` and `compare` (two of them), `drawer` (conversations),
    `playback` (replays), `tour`, and `messages`, a log of the WebSocket from the time this object
    was made.
    """

    def __init__(self, page: Page, site: Site | None = None, *, url: str = "") -> None:
        """`url`: address of a server that is not a `Site`. An open page needs neither."""
        self.page = page
        self.url = site.url if site else url
        self._site = site
        self.messages = MessageLog(page)
        self.sockets: list[WebSocketRoute] = []
        self.offline = False
        self.tokens = page.locator(".answer").last.locator(".tok")
        self.stats = page.get_by_test_id("stats")
        self.notice = page.get_by_test_id("notice")
        self.prompt = page.locator("#prompt")
        self.system = page.get_by_role("textbox", name="System")
        self.stop = page.get_by_role("button", name="Stop", exact=True)
        self.regenerate = page.get_by_role("button", name="Regenerate")
        self.continue_button = page.get_by_role("button", name="Continue")
        self.core = page.get_by_role("slider", name="Token in the core sample")

    @property
    def site(self) -> Site:
        assert self._site is not None, "this page was opened by its address"
        return self._site

    @cached_property
    def look(self) -> LookPanel:
        return LookPanel(self.page)

    @cached_property
    def compare(self) -> Comparison:
        return Comparison(self.page)

    @cached_property
    def reach(self) -> ReachPanel:
        return ReachPanel(self)

    @cached_property
    def drawer(self) -> Drawer:
        return Drawer(self.page)

    @cached_property
    def playback(self) -> Playback:
        return Playback(self.page)

    @cached_property
    def tour(self) -> TourCard:
        return TourCard(self.page)

    def open(self, *, ready: bool = True) -> Playground:
        self.page.goto(self.url)
        if ready:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        self.page.evaluate(TWO_FRAMES)  # the page shows a lost engine only after a frame
        expect(self.page.locator("body")).to_have_attribute(
            "data-engine", "ready", timeout=TIMEOUT_MS
        )

    def route_sockets(self) -> None:
        """Let the test close connections; call before `open`. `offline` refuses new ones."""

        def on_socket(route: WebSocketRoute) -> None:
            if self.offline:
                route.close(code=3001, reason="kept away by the test")
                return
            route.connect_to_server()
            self.sockets.append(route)

        self.page.route_web_socket("**/ws", on_socket)

    def cut(self) -> None:
        """Close the newest connection."""
        self.sockets[-1].close(code=3001, reason="cut by the test")

    # ---- acting ------------------------------------------------------------------------------

    def set(self, **boxes: Any) -> None:
        """Type values into number boxes: seed, max_tokens, or the name of a slider."""
        for name, value in boxes.items():
            box = self.box(name)
            box.fill(str(value))
            box.press("Enter")

    def box(self, name: str) -> Locator:
        """Return the number box of a setting, after unfolding the penalties for one of them or of
        the watermark."""
        if name.endswith("_penalty") or name in ("watermark_bias", "hashing_key"):
            self.page.locator("#penalties").evaluate("(fold) => void (fold.open = true)")
        return self.page.locator(f"#{name}, #n-{name}").first

    def slide(self, name: str, value: float) -> None:
        self.box(name)
        self.page.locator(f"#s-{name}").fill(str(value))

    def ask(self, text: str = "Tell me a story") -> None:
        self.prompt.fill(text)
        self.prompt.press("Enter")

    def step(self) -> None:
        """Press Step by the keyboard: a pointer may hold it for long on a busy machine."""
        self.page.get_by_role("button", name="Step").press("Enter")

    def write(self, text: str = "Tell me a story", n: int = 12) -> None:
        """Send a prompt and wait for the `n` tokens of its answer."""
        self.set(max_tokens=n)
        self.ask(text)
        self.wait_tokens(n)
        self.wait_done()

    def start_new(self) -> None:
        self.page.keyboard.press("Control+Shift+O")
        expect(self.page.locator("body")).to_have_attribute("data-phase", "empty")

    def wait_tokens(self, n: int) -> None:
        self.tokens.nth(n - 1).wait_for(state="attached", timeout=TIMEOUT_MS)

    def wait_done(self) -> None:
        self.page.evaluate(TWO_FRAMES)  # a request marks the page as writing only after a frame
        expect(self.page.locator("body")).not_to_have_attribute(
            "data-writing", "", timeout=TIMEOUT_MS
        )

    def load_as(self, **model: Any) -> None:
        """Tell the page that a model was loaded that has other fields of `ModelInfo`."""
        self.page.evaluate(LOAD_AS, model)
        self.page.evaluate(TWO_FRAMES)

    # ---- reading -----------------------------------------------------------------------------

    @property
    def answer(self) -> Locator:
        return self.page.locator(".answer").last

    def text(self) -> str:
        return str(self.answer.evaluate(TEXT_OF))

    def numbers(self) -> list[int]:
        """Return the number of every token in the answer, in reading order."""
        return [
            int(n)
            for n in self.answer.evaluate(
                "(node) => [...node.querySelectorAll('.tok')].map((t) => t.dataset.i)"
            )
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(
            self.page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )
