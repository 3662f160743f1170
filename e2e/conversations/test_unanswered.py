"""A message that the server has not answered is not lost when the page is loaded again: neither
on the page nor of a conversation that was left, whether the server got it or not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from e2e.conversations.test_left import ASK_AND_LEAVE, FOX, HARE, row_of
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until

N = 20
SENT_LOST, ANSWERS_LOST = "generate", "event"
"""Messages that do not arrive: the server never gets the request, or the page never an answer."""


class Wire:
    """Connections of a page; messages of the types in `lost` do not arrive on the newest one, and
    those in `lost_next` on the ones that follow."""

    def __init__(self, page: Page) -> None:
        self.lost: set[str] = set()
        self.lost_next: set[str] = set()
        self.n_lost = 0
        page.route_web_socket("**/ws", self._connect)

    def _connect(self, route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        self.lost = lost = set(self.lost_next)

        def unless_lost(send: Callable[[str | bytes], None]) -> Callable[[str | bytes], None]:
            def on_message(message: str | bytes) -> None:
                if isinstance(message, str) and json.loads(message)["type"] in lost:
                    self.n_lost += 1
                else:
                    send(message)

            return on_message

        route.on_message(unless_lost(server.send))
        server.on_message(unless_lost(route.send))


@pytest.fixture
def wire(page: Page) -> Wire:
    return Wire(page)


@pytest.fixture
def play(page: Page, wire: Wire, site: Callable[..., Site]) -> Playground:
    here = Playground(page, site(delay=0.01)).open()
    here.set(max_tokens=N, seed=5)
    return here


OPEN_ITSELF = """async () => {
  const { state } = await import("/static/js/state.js");
  const { openConversation } = await import("/static/js/conversations/library.js");
  await openConversation(state.conversation.id);
}"""
"""As the list does while a replay is in its place."""


def reload(play: Playground, wire: Wire) -> None:
    """Load the page again once a message was lost."""
    until(play.page, lambda: wire.n_lost > 0, "a message that does not arrive")
    play.page.reload()
    play.wait_ready()


def expect_answered(play: Playground, *said: str) -> None:
    expect(play.page.locator(".said")).to_have_text(list(said))
    play.wait_tokens(N)
    play.wait_done()
    assert play.numbers() == list(range(N))


@pytest.mark.parametrize("lost", [SENT_LOST, ANSWERS_LOST])
def test_of_a_new_conversation_that_was_left(play: Playground, wire: Wire, lost: str) -> None:
    wire.lost.add(lost)
    play.page.evaluate(ASK_AND_LEAVE, FOX)
    reload(play, wire)
    play.drawer.wait_stored(1)
    play.drawer.open(FOX)
    expect_answered(play, FOX)


def test_of_a_conversation_that_was_left_with_its_tokens(play: Playground, wire: Wire) -> None:
    play.write(FOX, N)
    play.drawer.wait_stored(1)
    wire.lost.add(SENT_LOST)
    play.page.evaluate(ASK_AND_LEAVE, HARE)
    reload(play, wire)
    until(play.page, lambda: play.drawer.entries()[0]["nTokens"] == 2 * N, "both answers")
    play.drawer.show()
    expect(row_of(play, FOX)).to_have_attribute("data-phase", "finished")
    play.drawer.open(FOX)
    expect_answered(play, FOX, HARE)
    expect(play.page.locator(".answer").first.locator(".tok")).to_have_count(N)


@pytest.mark.quick
def test_on_the_page_also_where_it_is_loaded_twice(play: Playground, wire: Wire) -> None:
    wire.lost.add(SENT_LOST)
    play.ask(FOX)
    wire.lost_next.add(SENT_LOST)
    reload(play, wire)
    until(play.page, lambda: wire.n_lost > 1, "the same message, which does not arrive either")
    wire.lost_next.clear()
    play.page.reload()
    expect_answered(play, FOX)


def test_that_is_left_while_its_tokens_are_on_their_way(play: Playground, wire: Wire) -> None:
    wire.lost.add(SENT_LOST)
    play.ask(FOX)
    reload(play, wire)
    play.start_new()
    play.drawer.wait_stored(1)
    play.drawer.open(FOX)
    expect_answered(play, FOX)


def test_of_a_conversation_that_is_opened_in_its_own_place(play: Playground, wire: Wire) -> None:
    play.write(FOX, N)
    play.drawer.wait_stored(1)
    wire.lost.add(ANSWERS_LOST)
    play.ask(HARE)
    until(play.page, lambda: wire.n_lost > 0, "an answer that does not arrive")
    play.page.evaluate(OPEN_ITSELF)
    reload(play, wire)
    expect_answered(play, FOX, HARE)
