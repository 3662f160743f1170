"""The page where a proxy serves it below a path: its files, its WebSocket and its questions."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from app import tale
from app.engine_client import LocalEngine
from e2e.playground import Playground
from e2e.site import Site
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import FakeTokenizer

pytestmark = pytest.mark.quick


def test_everything_is_found_below_a_path(page: Page) -> None:
    engine = LocalEngine(loader(), FakeTokenizer(), tale.model_dir())
    site = Site(engine, path="tokenglass/").start()
    try:
        here = Playground(page, site).open()
        here.write("One", 4)
        here.look.open("weights")
        expect(page.get_by_role("button", name="CSV")).to_be_enabled()
        (cookie,) = page.context.cookies(site.url)
        assert cookie.get("path") == "/tokenglass"
    finally:
        site.close()
