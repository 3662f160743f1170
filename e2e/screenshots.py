"""Take the screenshots of the README: SmolLM2 on a real server, with a fixed seed.

python -m e2e.screenshots docs

For the screenshots during generation, the change of temperature is scheduled with the request
(`changes`), and messages after a certain token are held back, so that the text does not depend on
timing. The instruments have a separate server and run, without such a stop.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import (
    Browser,
    Page,
    ViewportSize,
    WebSocketRoute,
    expect,
    sync_playwright,
)

from app.cli.software_device import browser as installed_browser
from e2e.look.comparison import Comparison
from e2e.palette_png import to_palette_png
from e2e.playground import Playground
from tests.real_weights import real_weights
from tests.serving import CHECKOUT, serving

ASK = "Tell me a story about a fox who finds a lantern"
MODEL = "SmolLM2-135M-Instruct"
EMBEDDING_MODEL = "all-MiniLM-L6-v2"
DOCS = Path(__file__).parents[1] / "docs"
SEED = 7
N_TOKENS = 160
HELD_AFTER = 110
"""Number of tokens on the page in the screenshots during generation."""
CHANGE_AT, TEMPERATURE = 72, 1.2
FIRST_FOCUS = 20
"""The instruments show the first improbable token from this index on."""

DESKTOP: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 360, "height": 740}
MAX_BYTES = 2_000_000
ANSWER_MS = 300_000
WARM_MS = 15_000
"""Time for the idle engine to compile its shaders, so that the times of the run are typical."""


class HeldSocket:
    """WebSocket proxy that schedules the change and holds back the messages after a token."""

    def __init__(self, page: Page) -> None:
        self._page_side: WebSocketRoute | None = None
        self._holding = False
        page.route_web_socket("**/ws", self._on_socket)

    def _on_socket(self, route: WebSocketRoute) -> None:
        self._page_side = route
        server = route.connect_to_server()
        route.on_message(lambda raw: self._to_server(server, raw))
        server.on_message(self._to_page)

    def _to_server(self, server: WebSocketRoute, raw: str | bytes) -> None:
        message: dict[str, Any] = json.loads(raw)
        if message["type"] == "update":
            return  # the slider is moved for the picture; the request has the change already
        if message["type"] == "generate":
            message["changes"] = [{"index": CHANGE_AT, "params": {"temperature": TEMPERATURE}}]
        server.send(json.dumps(message))

    def _to_page(self, raw: str | bytes) -> None:
        assert self._page_side is not None
        if self._holding:
            return
        self._page_side.send(raw)
        event = json.loads(raw).get("event", {}) if isinstance(raw, str) else {}
        self._holding = event.get("type") == "token" and event["index"] == HELD_AFTER - 1


class PictureFolder:
    """Folder of screenshots, stored as small PNG files."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._blank = browser.new_page()
        self._folder = folder
        self.n_bytes = 0

    def take(self, page: Page, name: str) -> None:
        page.evaluate("() => document.fonts.ready")
        page.wait_for_timeout(400)  # for transitions after a change of size or theme
        data = to_palette_png(page.screenshot(animations="disabled", caret="hide"), self._blank)
        (self._folder / f"{name}.png").write_bytes(data)
        self.n_bytes += len(data)
        print(f"{name}.png  {len(data) / 1000:.0f} KB")


def ask(page: Page, url: str) -> Playground:
    """Open the page, send the request, and wait until `HELD_AFTER` tokens are shown."""
    play = Playground(page, url=url).open()
    page.wait_for_timeout(WARM_MS)
    play.set(seed=SEED, max_tokens=N_TOKENS, temperature=0.7, top_k=0, top_p=0.95)
    play.ask(ASK)
    play.wait_tokens(HELD_AFTER)
    page.locator("#prompt").blur()
    return play


def during_generation(page: Page, url: str, album: PictureFolder) -> None:
    """Take the playground during generation: light, dark, and on a phone."""
    HeldSocket(page)
    ask(page, url).slide("temperature", TEMPERATURE)
    page.locator("#s-temperature").blur()
    album.take(page, "playground")
    page.emulate_media(color_scheme="dark")
    album.take(page, "playground-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(200)
    album.take(page, "playground-360")


def reach_in(page: Page) -> None:
    """Set some interventions, and wait for their effect on the token."""
    look = page.get_by_test_id("look")
    look.get_by_role("gridcell", name="layer 2, head 3").click()
    look.get_by_role("gridcell", name="layer 5, MLP").focus()
    for _ in range(5):
        page.keyboard.press("-")
    look.get_by_role("button", name="at sea").click()
    expect(page.get_by_test_id("look-source")).to_contain_text("Two passes", timeout=ANSWER_MS)
    expect(look.locator(".rc-tokens li").first).to_be_visible()


def compare_settings(page: Page) -> None:
    """Run the prompt greedily and at two temperatures, up to the reason why they part."""
    compare = Comparison(page)
    compare.add.click()
    Playground(page).set(temperature=1.4)
    compare.run()
    compare.pick(1)
    expect(compare.reason.get_by_role("table")).to_be_visible(timeout=ANSWER_MS)


def watch_steps(page: Page) -> None:
    """Run the columns of the comparison while their steps are recorded."""
    expect(page.locator(".st-summary")).to_contain_text("step", ignore_case=True)
    page.wait_for_timeout(WARM_MS)
    Comparison(page).open().go.click()
    Playground(page).look.open("schedule")
    expect(page.locator(".st-field")).to_have_attribute("aria-valuetext", re.compile("column"))
    page.wait_for_timeout(WARM_MS)


def run_batching(page: Page) -> None:
    """Run the experiment of the lab that has the clearest picture."""
    look = page.get_by_test_id("look")
    look.get_by_role("radio", name="Batching").check()
    look.get_by_role("button", name="Run", exact=True).click()
    expect(look.get_by_role("button", name="Run again")).to_be_visible(timeout=ANSWER_MS)


def size_large_model(page: Page) -> None:
    look = page.get_by_test_id("look")
    look.get_by_label("Model", exact=True).select_option("meta-llama/Llama-3.1-70B")
    expect(look).to_contain_text("70.6 billion parameters")


def show_scores(page: Page) -> None:
    """Open a row of the forward pass: the scores of a query with the keys."""
    page.get_by_test_id("look").get_by_role("button", name="q · k").click(timeout=ANSWER_MS)


def leave_words_out(page: Page) -> None:
    """Measure what the answer owes to each word of the prompt."""
    look = page.get_by_test_id("look")
    look.get_by_text("Whole answer", exact=True).click()
    measure = look.locator(".ab-side .send")
    measure.click()
    expect(measure).to_be_hidden(timeout=ANSWER_MS)


def find_chunks(page: Page) -> None:
    """Index two of the project's documents and find the chunks nearest to a question."""
    look = page.get_by_test_id("look")
    look.get_by_label("Files to index").set_input_files([DOCS / "gpus.md", DOCS / "cluster.md"])
    expect(look.locator(".rt-documents tbody tr")).to_have_count(2, timeout=ANSWER_MS)
    look.get_by_text("Question", exact=True).click()
    look.get_by_label("Your question").fill("What if a machine of the cluster is lost?")
    look.get_by_role("button", name="Find chunks").click()
    expect(look.locator(".rt-chunks li")).not_to_have_count(0, timeout=ANSWER_MS)


def take_one_step(page: Page) -> None:
    """Take one step of training on a text."""
    look = page.get_by_test_id("look")
    look.get_by_text("One step", exact=True).click()
    form = look.get_by_label("Text and optimiser of one step")
    form.get_by_label("Text", exact=True).fill("The fox found a lantern that remembered the sea.")
    look.get_by_role("button", name="Take one step").click()
    expect(look.get_by_role("status")).to_contain_text("The mean loss is", timeout=ANSWER_MS)


BEFORE: dict[str, Callable[[Page], None]] = {
    "forward": show_scores,
    "reach": reach_in,
    "compare": compare_settings,
    "attribution": leave_words_out,
    "retrieval": find_chunks,
    "schedule": watch_steps,
    "lab": run_batching,
    "needs": size_large_model,
    "train": take_one_step,
}
"""What is done in an instrument before its picture is taken."""


def each_instrument(page: Page, url: str, album: PictureFolder) -> None:
    """Take every tab of “Look closer” at an improbable token."""
    ask(page, url).wait_done()
    improbable = page.locator('.answer .tok[data-q="3"]')
    numbers = improbable.evaluate_all("(nodes) => nodes.map((node) => Number(node.dataset.i))")
    focus = next(number for number in numbers if number >= FIRST_FOCUS)
    page.locator(f'.answer .tok[data-i="{focus}"]').click()
    page.mouse.move(5, 5)
    look = page.get_by_test_id("look")
    for tab in page.get_by_role("tab").all():
        tab.click()
        expect(look).to_be_visible()
        name = page.evaluate("() => new URLSearchParams(location.hash.slice(1)).get('look')")
        expect(look).not_to_have_attribute("aria-busy", "true", timeout=ANSWER_MS)
        if name in BEFORE:
            BEFORE[name](page)
        expect(look).not_to_have_attribute("aria-busy", "true", timeout=ANSWER_MS)
        message = page.locator("#look-message")
        if message.is_visible():
            print(f"{name} shows nothing: {message.inner_text()}", file=sys.stderr)
        page.locator("#look").focus()
        album.take(page, f"look-{name}")
        if name == "reach":
            look.get_by_role("button", name="Reset").click()


@contextmanager
def chromium(*args: str) -> Iterator[Browser]:
    """Launch TOKENGLASS_CHROMIUM or the system's Chromium if there is one, else Playwright's.
    `args`: more arguments of its command line."""
    path = installed_browser()
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    mine = ["--disable-dev-shm-usage", *(["--no-sandbox"] if root else []), *args]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=mine)
        yield browser
        browser.close()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, TemporaryDirectory() as cache:
        album = PictureFolder(browser, folder)
        command = "env", f"TOKENGLASS_CACHE={cache}", *CHECKOUT  # the index of Retrieval is there
        models = "--model", real_weights(MODEL), "--embedding-model", real_weights(EMBEDDING_MODEL)
        for pictures in (during_generation, each_instrument):
            page = browser.new_page(viewport=DESKTOP, color_scheme="light")
            with serving(*models, command=command) as url:
                pictures(page, url, album)
            page.close()
    print(f"total {album.n_bytes / 1e6:.2f} MB")
    if album.n_bytes > MAX_BYTES:
        raise SystemExit(f"expected at most {MAX_BYTES / 1e6:g} MB of pictures")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
