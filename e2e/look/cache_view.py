"""The blocks of Cache, as its tests open and read them."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page
from e2e.playground import Playground
from e2e.site import Site
from gpu.kv.state import KvState
from tests.app import fake_inspection
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions


def the_state() -> KvState:
    """Return the fake engine's answer."""
    return fake_inspection._kv_state(FakeEngine(FakeOptions()).info)


def state_name(state: KvState, block: int) -> str:
    owners, found = state.owners[block], state.n_found[block]
    if owners:
        return "used by one run" if owners == 1 else "shared by runs"
    if not found:
        return "free"
    return "cached, full" if found == state.block_tokens else "cached, partial"


def radio(page: Page, name: str) -> Locator:
    return page.get_by_role("radio", name=name)


def choose(page: Page, name: str) -> None:
    page.locator(".kv-views label", has_text=name).click()
    expect(radio(page, name)).to_be_checked()


def field(page: Page) -> Locator:
    return page.get_by_role("slider", name="Block of the cache")


def opened(page: Page, here: Site, **media: str) -> tuple[Playground, LookPanel]:
    """The blocks of a page on which nothing has been run."""
    play = open_page(page, here, **media)
    look = play.look.open("cache")
    choose(page, "All blocks")
    expect(field(page)).to_have_attribute("aria-valuemax", "127")
    expect(look.message).to_be_hidden()
    return play, look


def wrote(page: Page, here: Site, n: int = 20) -> Playground:
    play = open_page(page, here)
    play.set(max_tokens=n, seed=3)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play
