"""The page behind a connection that breaks at every message, or inside every one."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from e2e.net.test_connection import LOST_LINE, expected, prepare
from e2e.playground import Playground
from e2e.site import Site
from tests.app.ws.faulty_line import Fault, FaultyLine
from tests.app.ws.test_faulty_line import EveryEvent, OfRequest

N = 12
RETRY_AT_ONCE = "setInterval(() => dispatchEvent(new Event('online')), 20)"
"""As if the network came back, when the page reconnects at once."""


@pytest.mark.parametrize("fault", ["cut", "inside", "twice", "bytes"])
def test_the_text_is_whole_and_nothing_comes_twice(
    page: Page, site: Callable[..., Site], allowed_console: list[str], fault: Fault
) -> None:
    allowed_console.append(LOST_LINE)
    here = site()
    with FaultyLine(urlsplit(here.url).port or 0, EveryEvent(fault)) as line:
        play = Playground(page, url=f"http://127.0.0.1:{line.port}/")
        page.add_init_script(RETRY_AT_ONCE)
        play.open()
        prepare(play, N)
        play.wait_tokens(N)
        play.wait_done()
        assert play.numbers() == list(range(N))
        assert play.text() == expected(here, N)
        expect(play.notice).to_be_hidden()
        assert line.n_broken >= N
        cuts = fault in ("cut", "inside")
        assert line.n_sockets > N if cuts else line.n_sockets == 1
        page.goto("about:blank")  # the line ends before the page does


@pytest.mark.parametrize("fault", ["cut", "inside", "twice"])
def test_a_request_that_was_cut_off_is_sent_again(
    page: Page, site: Callable[..., Site], allowed_console: list[str], fault: Fault
) -> None:
    allowed_console.append(LOST_LINE)
    here = site()
    with FaultyLine(urlsplit(here.url).port or 0, OfRequest(fault)) as line:
        play = Playground(page, url=f"http://127.0.0.1:{line.port}/").open()
        prepare(play, N)
        play.wait_tokens(N)
        play.wait_done()
        assert play.text() == expected(here, N)
        expect(play.notice).to_be_hidden()
        assert (line.n_broken, line.n_sockets) == ((1, 1) if fault == "twice" else (1, 2))
        page.goto("about:blank")
