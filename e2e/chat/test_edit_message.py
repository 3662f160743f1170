"""A message of the person is edited: the turns before it and the edited one become a branch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Locator, Page, expect

from e2e.chat.test_attachments import BLOCK, NOTES, attach, last_request
from e2e.chat.test_summary import ANSWER, FOUR, ONE, OPTIONS, THREE, TWO, contents, fill, say
from e2e.conversations.drawer import STORAGE_OFF
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.replay import playback
from e2e.replay.playback import as_file
from e2e.site import Site

FOX = "Tell me of a fox"
SAD = "Make it sad"
GLAD = "Make it glad"
N = 5


def field(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message to send instead")


def note(page: Page) -> Locator:
    return page.locator(".message-note")


def begin(page: Page, text: str) -> Locator:
    """Open the editor of the message with this text and return its field."""
    turn = page.locator(".turn.you").filter(has_text=text)
    turn.hover()
    turn.get_by_role("button", name="Edit").click()
    expect(field(page)).to_be_focused()
    return field(page)


def said(play: Playground) -> list[str]:
    return play.page.locator(".said").all_inner_texts()


def told(play: Playground) -> Playground:
    """A conversation of two messages."""
    play.set(seed=3)
    play.write(FOX, N)
    play.write(SAD, N)
    return play


def test_a_branch_has_the_turns_before_it_and_the_original_stays_as_it_was(
    page: Page, play: Callable[..., Playground], tmp_path: Path
) -> None:
    here = told(play())
    (original,) = here.drawer.wait_stored(1)
    first = page.locator(".answer").first.inner_text()
    page.get_by_role("textbox", name="Message", exact=True).fill("a draft")
    begin(page, SAD).fill(f"  {GLAD}\n")
    page.get_by_role("button", name="Send", exact=True).first.click()
    expect(page.locator(".branched")).to_have_text(f"Branched from {FOX}")
    here.wait_tokens(N)
    here.wait_done()
    expect(here.prompt).to_have_value("a draft")
    expect(here.prompt).to_be_focused()
    assert said(here) == [FOX, GLAD]
    assert [m["content"] for m in last_request(here)["messages"]] == [FOX, first, GLAD]

    entries = {entry["id"]: entry for entry in here.drawer.wait_stored(2)}
    assert entries.pop(original["id"]) == original
    (branch,) = entries.values()
    assert branch["title"] == GLAD
    assert branch["runs"][0] == original["runs"][0], "with its measured tokens"
    path = here.playback.save(tmp_path / "branch.json")
    saved = playback.read(path)
    assert len(playback.events(playback.segments(saved)[0], "token")) == N
    origin = {"id": original["id"], "title": FOX, "message": 1}
    assert saved["branched_from"] == origin

    page.reload()
    here.wait_ready()
    page.locator(".branched").get_by_role("button", name=FOX).click()
    expect(page.locator(".said")).to_have_text([FOX, SAD])
    expect(page.locator(".branched")).to_have_count(0)
    here.drawer.show()
    expect(here.drawer.rows.filter(has_text=GLAD)).to_contain_text(f"branch of “{FOX}”")
    for title in (GLAD, FOX):
        here.drawer.act("Delete", title).last.click()
        expect(here.drawer.rows.filter(has_text=title)).to_have_count(0)
    here.drawer.import_files(path)
    here.drawer.open(GLAD)
    expect(page.locator(".branched")).to_contain_text(f"“{FOX}”, which is no longer here")


def test_the_first_message_is_edited_by_keyboard_in_a_completion_too(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = told(play())
    page.get_by_text("Completion", exact=True).click()
    button = page.locator(".turn.you").first.get_by_role("button", name="Edit")
    expect(button).to_have_css("opacity", "0")
    page.locator("#system-text").press("Tab")
    expect(button).to_be_focused()
    expect(button).to_have_css("opacity", "1")
    page.keyboard.press("Enter")
    page.keyboard.press("Control+A")
    page.keyboard.type(" ")
    page.keyboard.press("Enter")
    expect(field(page)).to_have_value(" ")
    page.keyboard.type("A hare")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("and a fox")
    expect(note(page)).to_contain_text("Enter sends, Shift Enter breaks the line")
    page.keyboard.press("Enter")
    expect(page.locator(".said")).to_have_text(["A hare\nand a fox"], use_inner_text=True)
    here.wait_tokens(N)
    here.wait_done()
    assert last_request(here)["messages"] == [{"role": "user", "content": "A hare\nand a fox"}]
    assert {entry["heading"] for entry in here.drawer.wait_stored(2)} == {FOX, "A hare"}


def test_cancelling_changes_nothing(page: Page, play: Callable[..., Playground]) -> None:
    here = told(play())
    before = here.drawer.wait_stored(1)
    begin(page, FOX).fill(GLAD)
    page.keyboard.press("Escape")
    expect(field(page)).to_have_count(0)
    expect(page.locator(".turn.you").first.get_by_role("button", name="Edit")).to_be_focused()
    begin(page, SAD).fill(GLAD)
    page.get_by_role("button", name="Cancel").click()
    assert said(here) == [FOX, SAD]
    assert here.drawer.entries() == before
    assert len([m for m in here.messages.sent if m["type"] == "generate"]) == 2


def test_files_of_the_message_are_kept(page: Page, play: Callable[..., Playground]) -> None:
    here = play(context=2048)
    here.set(max_tokens=N)
    attach(here, as_file(NOTES + "\n", "notes.md"))
    here.ask("What is red?")
    here.wait_tokens(N)
    here.wait_done()
    edit = begin(page, "What is red?")
    expect(edit).to_have_value("What is red?")
    edit.fill("What is not?")
    edit.press("Enter")
    expect(page.locator(".said")).to_have_text("What is not?")
    expect(page.locator(".attached-file")).to_contain_text("notes.md")
    here.wait_done()
    assert last_request(here)["messages"][0]["content"] == f"{BLOCK}What is not?"


def test_summaries_of_the_turns_before_it_are_kept(
    page: Page, own_site: Callable[..., Site]
) -> None:
    here = fill(Playground(page, own_site(delay=0.0, **OPTIONS)).open())
    say(here, FOUR, 5)  # and a summary of the two oldest turns before it
    summary = page.locator(".turn.summary")
    begin(page, "Three").fill("3")
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(7)
    here.wait_done()
    expect(summary).to_contain_text("of the 2 oldest turns")
    messages = contents(last_request(here))
    assert (messages[0], messages[2:]) == ("Summarise our conversation so far.", ["3"])

    here.drawer.wait_stored(2)
    begin(page, "Two").fill("2")
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(4)
    expect(summary).to_have_count(0)
    here.wait_done()
    assert contents(last_request(here)) == [ONE, ANSWER, "2"]
    assert {TWO, THREE}.isdisjoint(said(here))


def test_it_is_not_sent_while_the_engine_is_down_or_an_answer_is_written(
    page: Page, site: Callable[..., Site]
) -> None:
    here = Playground(page, site(delay=0.03))
    here.route_sockets()
    told(here.open())
    edit = begin(page, SAD)
    edit.fill(GLAD)
    expect(note(page)).to_contain_text("becomes a branch")
    here.set(max_tokens=60)
    here.ask("More")
    expect(note(page)).to_contain_text("once the answer is written")
    for button in page.get_by_role("button", name="Edit", include_hidden=True).all():
        expect(button).to_be_hidden()
    here.stop.click()
    here.wait_done()
    here.offline = True
    here.cut()
    expect(note(page)).to_contain_text("once the model is ready")
    edit.press("Enter")
    expect(edit).to_have_value(GLAD)
    assert said(here) == [FOX, SAD, "More"]
    here.offline = False
    # No plain click: the page's own attempt may come first and hide the button.
    here.notice.get_by_role("button", name="Try now").dispatch_event("click")
    here.wait_ready()
    here.set(max_tokens=N)
    edit.press("Enter")
    expect(page.locator(".said")).to_have_text([FOX, GLAD])
    here.wait_done()


def test_a_refused_message_stays_in_the_branch_and_is_sent_again(
    page: Page, context: BrowserContext, site: Callable[..., Site]
) -> None:
    busy = site(delay=0.03, n_slots=1, queue=0)
    here = told(Playground(page, busy).open())
    other = Playground(context.new_page(), busy).open()
    other.set(max_tokens=400)
    other.ask(FOX)
    other.wait_tokens(1)
    begin(page, SAD).fill(GLAD)
    page.keyboard.press("Enter")
    expect(here.notice).to_contain_text("The queue is full")
    assert said(here) == [FOX, GLAD]
    here.drawer.wait_stored(3)
    other.stop.click()
    other.wait_done()
    here.notice.get_by_role("button", name="Send again").click()
    here.wait_tokens(N)
    here.wait_done()
    assert [m["content"] for m in last_request(here)["messages"]][-1] == GLAD


def test_it_is_not_sent_while_the_conversation_cannot_be_stored(
    page: Page, play: Callable[..., Playground]
) -> None:
    page.add_init_script(STORAGE_OFF)
    here = told(play())
    edit = begin(page, SAD)
    edit.fill(GLAD)
    edit.press("Enter")
    expect(note(page)).to_contain_text("This conversation cannot be stored")
    expect(edit).to_have_value(GLAD)
    expect(edit).to_be_editable()
    assert len([m for m in here.messages.sent if m["type"] == "generate"]) == 2


def test_the_editor_and_the_note_pass_the_checks_of_accessibility(
    page: Page, site: Callable[..., Site]
) -> None:
    here = told(open_page(page, site(), color_scheme="dark"))
    page.set_viewport_size({"width": 360, "height": 740})
    edit = begin(page, SAD)
    assert violations(page) == []
    assert here.overflow() == 0
    edit.fill("A long message that does not fit into one line of a narrow window")
    edit.press("Enter")
    here.wait_done()
    expect(page.locator(".branched")).to_be_visible()
    assert violations(page) == []
    assert here.overflow() == 0
