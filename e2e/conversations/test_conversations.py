"""Conversations are kept in the browser: opened again, searched, renamed, deleted, brought back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from e2e.conversations.drawer import STORAGE_OFF
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES, until

FOX = "Tell me of a fox"
CAFE = "Is the Café open?\nIt should be."


def another_tab(context: BrowserContext, here: Site) -> Playground:
    """A new tab of the same browser, which has no conversation of its own."""
    return Playground(context.new_page(), here).open()


def test_a_conversation_is_opened_in_another_tab_as_it_was(
    page: Page, context: BrowserContext, site: Callable[..., Site]
) -> None:
    here = site()
    play = Playground(page, here).open()
    play.set(seed=5)
    play.write("<b>One</b>", 10)
    play.write("Two", 9)
    play.regenerate.click()
    play.wait_tokens(9)
    play.wait_done()
    page.get_by_role("button", name="Previous version").click()
    before = play.playback.state()
    play.drawer.wait_stored(1)
    other = another_tab(context, here)
    other.drawer.open("<b>One</b>")
    other.wait_done()
    after = other.playback.state()
    for name in ("turns", "stats", "token", "candidates", "draw", "layers", "core"):
        assert after[name] == before[name], name
    expect(other.page.locator("#version")).to_have_text("1/2")
    assert other.page.locator(".log b").count() == 0
    text = other.text()
    other.continue_button.click()
    other.wait_tokens(18)
    other.wait_done()
    request = [m for m in other.messages.sent if m["type"] == "generate"][-1]
    assert request["written"] == 9, "it goes on from its ids"
    assert other.text().startswith(text)


FOLDED = """async (texts) => {
  const { fold } = await import("/static/js/conversations/search.js");
  return [...new Set(texts.map(fold))];
}"""
"""What texts are to the search."""


def test_the_list_is_searched_without_regard_to_case_and_accents(
    play: Callable[..., Playground],
) -> None:
    here = play()
    here.write(FOX, 4)
    here.start_new()
    here.write(CAFE, 4)
    drawer = here.drawer
    drawer.wait_stored(2)
    drawer.show()
    expect(drawer.titles).to_have_text(["Is the Café open?", FOX])
    expect(drawer.rows.first).to_have_attribute("aria-current", "true")
    drawer.search.fill("should CAFE")
    expect(drawer.titles).to_have_text(["Is the Café open?"])
    expect(drawer.dialog.locator("mark")).to_have_text("Café")
    answer = here.text().split()[0]
    drawer.search.fill(answer.upper())
    expect(drawer.rows).to_have_count(2)
    drawer.search.fill("zebra")
    expect(drawer.rows).to_have_count(0)
    assert len(here.page.evaluate(FOLDED, ["Straße ΟΔΟΣ", "STRASSE οδός"])) == 1
    expect(drawer.dialog).to_contain_text("Nothing found for “zebra”.")


PUT = """async (text) => {
  const { tokenize } = await import("/static/js/net/inspect.js");
  const { replaceToken } = await import("/static/js/chat/replace-token-run.js");
  const { answer } = (await import("/static/js/view.js")).view;
  replaceToken(answer, 2, (await tokenize({ text })).tokens);
}"""


def test_a_text_that_was_put_into_an_answer_is_found(play: Callable[..., Playground]) -> None:
    here = play()
    here.write(FOX, 6)
    here.page.evaluate(PUT, " zebra crossing")
    expect(here.page.locator("#version")).to_have_text("2/2")
    expect(here.answer).to_contain_text("zebra crossing")
    here.wait_done()
    (entry,) = here.drawer.wait_stored(1)
    assert here.text() in entry["text"]
    here.drawer.show().search.fill("zebra")
    expect(here.drawer.dialog.locator("mark")).to_have_text("zebra")


def test_a_long_name_of_a_model_leaves_the_tokens(play: Callable[..., Playground]) -> None:
    here = play()
    here.write(FOX, 4)
    here.drawer.wait_stored(1)
    facts = here.drawer.show().rows.locator(".kept-facts")
    facts.locator(".kept-model").evaluate("(name) => { name.textContent = 'Model'.repeat(30) }")
    right = "(node) => node.getBoundingClientRect().right"
    assert facts.locator(".kept-tokens").evaluate(right) <= facts.evaluate(right)


def test_a_name_is_given_by_keyboard_alone(play: Callable[..., Playground]) -> None:
    here = play()
    here.write(FOX, 4)
    here.drawer.wait_stored(1)
    page, drawer = here.page, here.drawer
    page.keyboard.press("Control+K")
    expect(drawer.search).to_be_focused()
    expect(drawer.rows).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(drawer.rows.first).to_be_focused()
    page.keyboard.press("F2")
    page.keyboard.type("Lost")
    page.keyboard.press("Escape")
    expect(drawer.dialog).to_be_visible()
    expect(drawer.titles).to_have_text([FOX])
    page.keyboard.press("F2")
    page.keyboard.type("Foxes")
    page.keyboard.press("Enter")
    expect(drawer.titles).to_have_text(["Foxes"])
    expect(drawer.rows.first).to_be_focused()
    page.keyboard.press("Escape")
    expect(drawer.dialog).to_be_hidden()
    assert page.title() == "Foxes · Tokenglass"
    here.write("More", 4)
    assert [entry["title"] for entry in drawer.wait_stored(1)] == ["Foxes"]


def test_a_name_that_is_being_typed_outlives_what_is_stored_meanwhile(
    page: Page, own_site: Callable[..., Site]
) -> None:
    here = Playground(page, own_site(delay=0.03)).open()
    here.set(max_tokens=60)
    here.ask(FOX)
    here.wait_tokens(2)
    here.drawer.wait_stored(1)
    here.drawer.show()
    page.keyboard.press("ArrowDown")
    expect(here.drawer.rows.first).to_be_focused()
    page.keyboard.press("F2")
    page.keyboard.type("Fox")
    here.wait_done()  # which stores the conversation again
    page.wait_for_timeout(500)
    page.keyboard.type("es")
    page.keyboard.press("Enter")
    expect(here.drawer.titles).to_have_text(["Foxes"])


def test_its_buttons_keep_the_focus_and_a_press_while_it_is_stored_again(
    page: Page, site: Callable[..., Site]
) -> None:
    here = Playground(page, site(delay=0.03)).open()
    here.set(max_tokens=1000)
    here.ask(FOX)
    here.wait_tokens(2)
    here.drawer.wait_stored(1)
    here.drawer.show()
    tokens = here.drawer.dialog.locator(".kept-tokens")
    save, delete = (here.drawer.act(name, FOX) for name in ("Save", "Delete"))
    save.focus()
    before = tokens.inner_text()
    expect(tokens).not_to_have_text(before)
    expect(save).to_be_focused()
    delete.hover()
    page.mouse.down()
    before = tokens.inner_text()
    expect(tokens).not_to_have_text(before)
    page.mouse.up()
    expect(here.drawer.rows).to_have_count(0)


def test_a_deleted_conversation_comes_back(play: Callable[..., Playground]) -> None:
    here = play()
    here.write(FOX, 6)
    text = here.text()
    drawer = here.drawer
    drawer.wait_stored(1)
    drawer.show().act("Delete", FOX).click()
    expect(drawer.rows).to_have_count(0)
    expect(here.page.locator("body")).to_have_attribute("data-phase", "empty")
    assert drawer.entries() == []
    drawer.dialog.get_by_role("button", name="Undo").click()
    expect(drawer.titles).to_have_text([FOX])
    here.page.keyboard.press("Escape")
    assert here.text() == text
    expect(here.tokens).to_have_count(6)
    here.write("And then?", 4)
    assert len(drawer.wait_stored(1)) == 1, "it is the same conversation still"


def test_one_whose_end_the_server_forgot_is_as_it_was_stored(
    page: Page, context: BrowserContext, own_site: Callable[..., Site]
) -> None:
    here = own_site(delay=0.03)
    play = Playground(page, here).open()
    play.set(max_tokens=200)
    play.ask(FOX)
    play.wait_tokens(8)
    play.drawer.wait_stored(1)
    page.close()
    context.clear_cookies()
    other = another_tab(context, here)
    other.drawer.open(FOX)
    other.wait_done()
    expect(other.stats).to_contain_text("stopped")
    expect(other.notice).to_be_hidden()
    n = len(other.numbers())
    assert n >= 1
    other.set(max_tokens=5)
    other.continue_button.click()
    other.wait_tokens(n + 1)


def test_a_refused_prompt_leaves_no_conversation(play: Callable[..., Playground]) -> None:
    here = play(context=64)
    here.ask("x" * 200)
    expect(here.notice).to_contain_text("The prompt is too long")
    here.start_new()
    assert here.drawer.entries() == []


def test_a_reload_has_the_tokens_of_every_turn_and_needs_no_server_for_them(
    page: Page, own_site: Callable[..., Site]
) -> None:
    play = Playground(page, own_site()).open()
    play.write("One", 8)
    play.write("Two", 7)
    before = play.playback.state()
    play.drawer.wait_stored(1)
    page.context.clear_cookies()  # another session: the server has none of its generations
    page.reload()
    play.wait_ready()
    expect(page.locator(".answer").first.locator(".tok")).to_have_count(8)
    expect(play.tokens).to_have_count(7)
    after = play.playback.state()
    for name in ("turns", "token", "candidates", "layers"):
        assert after[name] == before[name], name
    play.write("Three", 4)
    (entry,) = play.drawer.wait_stored(1)
    assert entry["nTokens"] == 19, "and it is the same conversation"


HOLD = """() => {
  const Unheld = DecompressionStream;
  const allowed = new Promise((allow) => { globalThis.allow = allow });
  globalThis.DecompressionStream = function (format) {
    globalThis.DecompressionStream = Unheld;
    globalThis.isHeld = true;
    const transform = async (chunk, held) => { await allowed; held.enqueue(chunk) };
    const { writable, readable } = new Unheld(format);
    const gate = new TransformStream({ transform, flush: () => globalThis.pass() });
    return { writable, readable: readable.pipeThrough(gate) };
  };
  globalThis.isHeld = false;
}"""
"""Holds the next conversation that is opened."""
RELEASE = """async (id) => {
  const { readFile } = await import("/static/js/conversations/database.js");
  const { openFile } = await import("/static/js/conversations/kept-file.js");
  const passed = new Promise((pass) => { globalThis.pass = pass });
  globalThis.allow();
  await passed;
  await openFile(await readFile(id));
}"""
"""Lets it go on, and opens another once it was read: what it does to the page is done by then."""


def test_one_that_opens_late_does_not_replace_the_one_chosen_after_it(
    play: Callable[..., Playground],
) -> None:
    here = play()
    page, said = here.page, here.page.locator(".said")
    for text in ("One", "Two", "Three"):
        here.start_new()
        here.write(text, 4)
        here.drawer.entries()
    id = here.drawer.wait_stored(3)[0]["id"]
    page.evaluate(HOLD)
    here.drawer.show().rows.filter(has_text="One").click()
    until(page, lambda: page.evaluate("isHeld"), "the conversation that opens late")
    here.drawer.open("Two")
    page.evaluate(RELEASE, id)
    page.evaluate(TWO_FRAMES)
    expect(said).to_have_text("Two")
    page.evaluate(HOLD)
    page.go_back()
    until(page, lambda: page.evaluate("isHeld"), "the conversation before it")
    page.go_forward()
    page.evaluate(RELEASE, id)
    page.evaluate(TWO_FRAMES)
    expect(said).to_have_text("Two")


# ---- two tabs --------------------------------------------------------------------------------


def test_a_second_tab_follows_the_first(
    page: Page, context: BrowserContext, site: Callable[..., Site]
) -> None:
    here = site()
    play = Playground(page, here).open()
    play.write(FOX, 6)
    play.drawer.wait_stored(1)
    other = another_tab(context, here)
    other.drawer.open(FOX)
    play.write("And then?", 5)
    expect(other.page.locator(".turn")).to_have_count(4)
    expect(other.tokens).to_have_count(5)
    other.write("The end?", 4)
    expect(page.locator(".turn")).to_have_count(6)
    assert len(play.drawer.wait_stored(1)) == 1


def test_a_system_prompt_that_is_being_typed_outlives_what_another_tab_writes(
    page: Page, context: BrowserContext, site: Callable[..., Site]
) -> None:
    here = site()
    play = Playground(page, here).open()
    play.write(FOX, 6)
    play.drawer.wait_stored(1)
    other = another_tab(context, here)
    other.drawer.open(FOX)
    other.system.fill("Answer in")
    play.write("And then?", 5)
    play.drawer.entries()
    third = another_tab(context, here)  # which has heard of it by the time that it is open
    third.drawer.open(FOX)
    expect(third.page.locator(".turn")).to_have_count(4)
    expect(other.system).to_have_value("Answer in")
    other.system.press_sequentially(" rhymes.")
    other.system.press("Escape")
    expect(other.page.locator(".turn")).to_have_count(4)
    expect(other.system).to_have_value("Answer in rhymes.")
    (entry,) = other.drawer.wait_stored(1)
    assert entry["system"] == "Answer in rhymes."


def test_a_tab_that_looks_on_leaves_the_settings_of_the_run_alone(
    page: Page, context: BrowserContext, site: Callable[..., Site]
) -> None:
    here = site(delay=0.03)
    play = Playground(page, here).open()
    play.write(FOX, 4)
    play.drawer.wait_stored(1)
    other = another_tab(context, here)
    other.drawer.open(FOX)
    play.set(temperature=1.5, max_tokens=1000)
    play.ask("And then?")
    expect(other.page.locator(".turn")).to_have_count(4)
    until(other.page, lambda: types_of(other).count("resume"), "the other tab's resume")
    other.wait_tokens(len(play.numbers()) + 10)  # an update would have been sent by then
    play.stop.click()
    other.wait_done()
    assert "update" not in types_of(other)
    assert not play.messages.events("updated")


def types_of(play: Playground) -> list[str]:
    return [message["type"] for message in play.messages.sent]


def test_a_tab_that_was_away_shows_what_another_wrote_and_does_not_overwrite_it(
    page: Page, context: BrowserContext, site: Callable[..., Site]
) -> None:
    here = site()
    play = Playground(page, here).open()
    play.write(FOX, 6)
    play.drawer.wait_stored(1)
    other = another_tab(context, here)
    other.drawer.open(FOX)
    other.page.goto("about:blank")
    play.write("And then?", 5)
    play.drawer.entries()
    other.open()
    expect(other.page.locator(".turn")).to_have_count(4)
    other.write("The end?", 4)
    (entry,) = other.drawer.wait_stored(1)
    assert "And then?" in entry["text"]
    assert "The end?" in entry["text"]
    expect(page.locator(".turn")).to_have_count(6)


def test_a_tab_whose_memory_was_full_has_its_newest_text_after_a_reload(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site()).open()
    play.write(FOX, 6)
    play.drawer.wait_stored(1)
    page.evaluate(TAB_FULL)
    play.start_new()
    play.write("Another", 5)
    play.drawer.wait_stored(2)
    page.reload()
    play.wait_ready()
    expect(page.locator(".said")).to_have_text("Another")
    expect(play.tokens).to_have_count(5)


TAB_FULL = """() => {
  const { setItem } = Storage.prototype;
  Storage.prototype.setItem = function (...given) {
    if (this === sessionStorage) throw new DOMException("no room", "QuotaExceededError");
    return setItem.apply(this, given);
  };
}"""
"""Lets the tab remember no more of its conversation."""
DEAF = "BroadcastChannel.prototype.postMessage = () => {}"


@pytest.mark.quick
def test_two_tabs_that_write_at_the_same_time_keep_both_texts(
    page: Page, context: BrowserContext, site: Callable[..., Site]
) -> None:
    """Neither hears of the other in time; the later one becomes a copy."""
    context.add_init_script(DEAF)
    here = site(delay=0.03)
    play = Playground(page, here).open()
    play.write(FOX, 4)
    play.drawer.wait_stored(1)
    other = another_tab(context, here)
    other.drawer.open(FOX)
    for each, words in ((play, "left"), (other, "right")):
        each.set(max_tokens=60)
        each.ask(words)
    for each in (play, other):
        each.wait_tokens(60)
        each.wait_done()
    entries = play.drawer.wait_stored(2)
    texts = [entry["text"] for entry in entries]
    assert sum("left" in text for text in texts) == 1
    assert sum("right" in text for text in texts) == 1
    assert [entry["title"] for entry in entries if entry["title"]] == [f"{FOX} (copy)"]
    notices = [each.notice.inner_text() for each in (play, other)]
    assert sum("Kept as a copy" in text for text in notices) == 1
    for each in (play, other):
        each.page.reload()
        each.wait_ready()
    assert len(play.drawer.entries()) == 2


# ---- when the browser does not store ----------------------------------------------------------

STORAGE_FULL = """
const put = IDBObjectStore.prototype.put;
IDBObjectStore.prototype.put = function (...given) {
  if (globalThis.storageIsFull ?? true)
    throw new DOMException("no room", "QuotaExceededError");
  return put.apply(this, given);
};
"""


def test_without_storage_it_is_said_and_the_tab_keeps_its_text(
    page: Page, site: Callable[..., Site]
) -> None:
    page.add_init_script(STORAGE_OFF)
    play = Playground(page, site()).open()
    play.write(FOX, 6)
    expect(play.notice).to_contain_text("Conversations are not kept")
    expect(play.notice).to_contain_text("private window")
    play.drawer.show()
    expect(play.drawer.error).to_contain_text("last until this tab is closed")
    assert violations(page) == []
    page.keyboard.press("Escape")
    play.notice.get_by_role("button", name="Dismiss").click()
    expect(play.notice).to_be_hidden()
    text = play.text()
    page.reload()
    play.wait_ready()
    play.wait_tokens(6)
    assert play.text() == text
    play.write("And then?", 4)
    expect(play.notice).to_contain_text("Conversations are not kept")


def test_full_storage_is_said_and_the_text_is_stored_once_there_is_room(
    page: Page, site: Callable[..., Site]
) -> None:
    page.add_init_script(STORAGE_FULL)
    play = Playground(page, site()).open()
    play.write(FOX, 6)
    expect(play.notice).to_contain_text("The browser’s storage is full")
    with page.expect_download() as download:
        play.notice.get_by_role("button", name="Save as a file").click()
    assert download.value.suggested_filename == "tokenglass-tell-me-of-a-fox.json.gz"
    play.notice.get_by_role("button", name="Conversations").click()
    expect(play.drawer.dialog).to_be_visible()
    page.keyboard.press("Escape")
    page.evaluate("() => { globalThis.storageIsFull = false }")
    play.write("And then?", 4)
    (entry,) = play.drawer.wait_stored(1)
    assert FOX in entry["text"]
    assert "And then?" in entry["text"]


def test_what_was_not_stored_before_a_reload_is_stored_after_it(
    page: Page, site: Callable[..., Site]
) -> None:
    page.add_init_script(STORAGE_FULL)
    play = Playground(page, site()).open()
    play.write(FOX, 6)
    page.reload()
    play.wait_tokens(6)
    page.evaluate("() => { globalThis.storageIsFull = false }")
    play.start_new()
    (entry,) = play.drawer.wait_stored(1)
    assert (entry["heading"], entry["nTokens"]) == (FOX, 6)
    expect(play.notice).to_be_hidden()


# ---- how it is stored -------------------------------------------------------------------------

PACKED = """async (mostBytes) => {
  const { packConversation, openFile } = await import("/static/js/conversations/kept-file.js");
  const { state } = await import("/static/js/state.js");
  const replay = await openFile(await packConversation(state, mostBytes));
  return replay.turns[1].answers[0].segments[0].events.map(({ event }) => event);
}"""


def test_beyond_a_bound_the_oldest_tokens_lose_their_statistics(
    play: Callable[..., Playground],
) -> None:
    here = play()
    here.write(FOX, 30)

    def stats(most: float) -> list[Any]:
        events = here.page.evaluate(PACKED, most)
        return [event["stats"] for event in events if event["type"] == "token"]

    whole = stats(1e9)
    assert all(whole)
    one = 8 * (190 + 20 * len(whole[0]["layers"][0]["entropy"]))
    assert stats(10.5 * one) == [None] * 20 + whole[20:]
    assert stats(0) == [None] * 30


OPENED_BY = """async (nLayers) => {
  const { packConversation, openFile, turnsOf } =
    await import("/static/js/conversations/kept-file.js");
  const { state } = await import("/static/js/state.js");
  const replay = await openFile(await packConversation(state));
  const { model } = state.hello;
  const [, { answers }] = turnsOf(replay, ["a"], { model: { ...model, n_layers: nLayers } });
  return answers[0].tokens.map(({ text, stats }) => [text, stats?.layers.length ?? null]);
}"""


def test_a_model_of_another_shape_shows_the_text_without_statistics_of_layers(
    play: Callable[..., Playground],
) -> None:
    here = play()
    here.write(FOX, 5)
    tokens = here.page.evaluate(OPENED_BY, 8)
    assert [layers for _, layers in tokens] == [8] * 5
    assert here.page.evaluate(OPENED_BY, 30) == [[text, None] for text, _ in tokens]


# ---- how it looks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theme", "width"), [pytest.param("light", 1440, marks=pytest.mark.slow), ("dark", 360)]
)
def test_axe_finds_nothing_in_the_drawer(
    page: Page, site: Callable[..., Site], theme: str, width: int
) -> None:
    play = open_page(page, site(), color_scheme=theme)
    drawer = play.drawer
    drawer.show()
    assert violations(page) == [], "empty"
    page.keyboard.press("Escape")
    for text in (FOX, "x" * 300):
        play.write(text, 4)
        drawer.entries()
        play.start_new()
    page.set_viewport_size({"width": width, "height": 740})
    drawer.show()
    expect(drawer.rows).to_have_count(2)
    assert violations(page) == []
    assert drawer.dialog.evaluate("(node) => node.scrollWidth - node.clientWidth") <= 0
    drawer.search.fill("fox")
    expect(drawer.rows).to_have_count(1)
    assert violations(page) == [], "searched"
    drawer.rows.focus()
    page.keyboard.press("Delete")
    expect(drawer.dialog.get_by_role("button", name="Undo")).to_be_visible()
    assert violations(page) == [], "deleted"
    assert play.overflow() <= 0
    page.keyboard.press("Escape")
    assert play.overflow() <= 0
    until(page, lambda: page.locator(".top").bounding_box()["height"] < 60, "one line")  # type: ignore[index]
