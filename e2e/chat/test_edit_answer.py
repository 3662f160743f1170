"""An answer is edited: the turns before it and the edited text become a branch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.chat.test_attachments import last_request
from e2e.chat.test_edit_message import FOX, GLAD, SAD, N, note, told
from e2e.chat.test_summary import ANSWER, FOUR, ONE, OPTIONS, THREE, TWO, contents, fill, say
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.replay import playback
from e2e.replay.playback import as_file
from e2e.site import Site
from e2e.waiting import until

HARE = "  A hare,\nnot a fox. "
NOT_MEASURED = "This answer was edited by a person, so nothing of it was measured."


def field(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Answer to put in its place")


def begin(page: Page, n: int) -> Locator:
    """Open the editor of answer number `n` and return its field."""
    turn = page.locator(".turn.model").nth(n)
    turn.hover()
    turn.get_by_role("button", name="Edit").click()
    expect(field(page)).to_be_focused()
    return field(page)


def answers(play: Playground) -> list[str]:
    return [
        box.evaluate("(node) => node.textContent") for box in play.page.locator(".answer").all()
    ]


def save(page: Page) -> None:
    page.get_by_role("button", name="Save", exact=True).click()
    expect(field(page)).to_have_count(0)
    expect(page.locator(".branched")).to_be_visible()


def edited(play: Playground, n: int = 1, text: str = HARE) -> Playground:
    """A conversation of two messages, of which answer number `n` was edited."""
    told(play)
    begin(play.page, n).fill(text)
    save(play.page)
    return play


def test_the_edited_text_takes_the_place_of_the_answer_in_a_branch(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = told(play())
    (original,) = here.drawer.wait_stored(1)
    first, second = answers(here)
    edit = begin(page, 0)
    expect(edit).to_have_value(first)
    edit.fill(HARE)
    save(page)
    expect(here.prompt).to_be_focused()
    expect(page.locator(".said")).to_have_text([FOX])
    assert here.text() == HARE
    place = page.locator(".turn.you + .branched + .turn.model")
    expect(place, "between the message and the edited answer").to_have_count(1)
    here.write(SAD, N)
    assert [m["content"] for m in last_request(here)["messages"]] == [FOX, HARE, SAD]

    entries = {entry["id"]: entry for entry in here.drawer.wait_stored(2)}
    assert entries.pop(original["id"]) == original, "as it was"
    (branch,) = entries.values()
    assert branch["title"] == "A hare,"
    assert branch["branchedFrom"] == {
        "id": original["id"], "title": FOX, "message": 0, "answer": 0,
    }  # fmt: skip
    page.locator(".branched").get_by_role("button", name=FOX).click()
    until(page, lambda: answers(here) == [first, second], "the answers of the original")
    expect(page.locator(".said")).to_have_text([FOX, SAD])
    here.drawer.show()
    here.drawer.search.fill("hare")
    expect(here.drawer.rows).to_have_count(1)


def test_nothing_of_an_edited_text_is_shown_as_measured(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = edited(play())
    expect(here.answer.locator(".tok")).to_have_count(0)
    expect(here.answer.locator(".mark-change")).to_have_text("edited")
    expect(here.stats).to_have_text("edited, not measured")
    expect(page.locator("#blank")).to_have_text(NOT_MEASURED)
    expect(page.locator("#tok-word")).to_have_text("Next token")
    for name in ("timeline", "cache", "branches"):
        here.look.open(name)
        expect(page.locator("#look")).to_contain_text(NOT_MEASURED)
    page.keyboard.press("Escape")
    page.locator(".turn.model").first.locator(".tok").first.click()
    expect(page.locator("#blank"), "of the answer before it").to_be_hidden()


def test_the_model_goes_on_from_the_end_of_the_edited_text(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = told(play())
    first, _ = answers(here)
    begin(page, 1).fill(HARE)
    page.get_by_role("button", name="Continue from here").click()
    expect(here.answer).to_contain_text(HARE.strip())  # the answer before it has N tokens too
    here.wait_tokens(N)
    here.wait_done()
    request = last_request(here)
    assert [m["content"] for m in request["messages"]] == [FOX, first, SAD, HARE]
    assert request["continue_final"]
    written = [event["text"] for event in here.messages.events("token")][-N:]
    assert here.text() == HARE + "".join(written)
    expect(here.answer.locator(".mark-change")).to_have_text(["edited", "continued"])
    expect(page.locator("#blank"), "what the model wrote was measured").to_be_hidden()
    n_prompt = len(here.messages.events("accepted")[-1]["prompt"])
    here.tokens.first.click()
    page.locator("#tok-prev").click()
    expect(page.locator("#tok-no"), "and the edited text, as it read it").to_have_text(
        f"prompt {n_prompt}"
    )
    expect(page.locator("#tok-sub")).to_have_text("given, not chosen")
    here.continue_button.click()
    here.wait_tokens(2 * N)
    here.wait_done()
    assert last_request(here)["written"] == N, "by its tokens"
    assert here.text().startswith(HARE + "".join(written))


def test_another_version_can_be_written_beside_it(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = edited(play())
    here.regenerate.click()
    here.wait_tokens(N)
    here.wait_done()
    assert [m["content"] for m in last_request(here)["messages"]][-1] == SAD
    page.get_by_role("button", name="Previous version").click()
    expect(here.stats).to_have_text("edited, not measured")
    assert here.text() == HARE


@pytest.mark.quick
def test_it_is_kept_saved_and_opened_as_an_edited_text(
    page: Page, play: Callable[..., Playground], tmp_path: Path
) -> None:
    here = edited(play())
    here.drawer.wait_stored(2)
    shown = answers(here)
    page.reload()
    here.wait_ready()
    expect(here.stats).to_have_text("edited, not measured")
    assert answers(here) == shown
    here.start_new()
    here.drawer.open("A hare,")
    expect(here.stats).to_have_text("edited, not measured")
    assert answers(here) == shown

    path = here.playback.save(tmp_path / "branch.json")
    saved = playback.read(path)
    segment = playback.segments(saved)[1]
    assert (segment["text"], segment["edited"]) == (HARE, True)
    assert "model" not in segment
    assert [m["content"] for m in segment["request"]["messages"]][-1] == SAD
    here.playback.open(path)
    here.playback.slider.press("End")
    expect(here.answer.locator(".mark-change")).to_have_text("edited")
    assert here.text() == HARE
    expect(here.playback.again).to_be_disabled()
    expect(page.locator(".turn.model").first.get_by_role("button", name="Edit")).to_be_hidden()
    here.playback.leave.click()
    here.drawer.show()
    here.drawer.act("Delete", "A hare,").last.click()
    expect(here.drawer.rows).to_have_count(1)
    here.drawer.import_files(path)
    expect(here.drawer.rows).to_have_count(2)
    here.drawer.open("A hare,")
    assert answers(here) == shown


def test_an_edited_segment_with_events_is_refused(
    page: Page, play: Callable[..., Playground], tmp_path: Path
) -> None:
    here = told(play())
    saved = playback.read(here.playback.save(tmp_path / "told.json"))
    playback.segments(saved)[1]["edited"] = True
    here.playback.give(as_file(saved))
    expect(here.playback.error).to_contain_text("is edited, so it must have a text")


def test_a_completion_is_edited(page: Page, play: Callable[..., Playground]) -> None:
    here = told(play())
    page.get_by_text("Completion", exact=True).click()
    here.write("There was", N)
    begin(page, 2).fill(" a hare")
    page.get_by_role("button", name="Continue from here").click()
    here.wait_tokens(N)
    here.wait_done()
    assert last_request(here)["prompt"] == "There was a hare"
    assert here.text().startswith("There was a hare")
    expect(page.locator(".branched + .turn.model")).to_have_count(1)
    (branch,) = [entry for entry in here.drawer.wait_stored(2) if entry["branchedFrom"]]
    assert (branch["branchedFrom"]["message"], branch["branchedFrom"]["answer"]) == (2, 2)


def test_cancelling_changes_nothing(page: Page, play: Callable[..., Playground]) -> None:
    here = told(play())
    before = here.drawer.wait_stored(1)
    shown = answers(here)
    edit = begin(page, 1)
    for name in ("Save", "Continue from here"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    edit.fill(" ")
    edit.press("Control+Enter")
    expect(edit).to_have_value(" ")
    edit.press("Escape")
    expect(field(page)).to_have_count(0)
    expect(page.locator(".turn.model").nth(1).get_by_role("button", name="Edit")).to_be_focused()
    expect(page.locator(".answer").last).to_be_visible()
    assert answers(here) == shown
    assert here.drawer.entries() == before


def test_it_waits_for_the_answer_that_is_written(page: Page, site: Callable[..., Site]) -> None:
    here = Playground(page, site(delay=0.03))
    here.route_sockets()
    told(here.open())
    edit = begin(page, 1)
    edit.fill(HARE)
    here.set(max_tokens=60)
    here.regenerate.click()
    expect(note(page)).to_contain_text("once the answer is written")
    expect(page.locator(".answer").last, "it is written beside the editor").to_be_visible()
    for button in page.get_by_role("button", name="Edit", include_hidden=True).all():
        expect(button).to_be_hidden()
    edit.press("Control+Enter")
    expect(edit).to_have_value(HARE)
    here.stop.click()
    here.wait_done()
    here.offline = True
    here.cut()
    more = page.get_by_role("button", name="Continue from here")
    expect(more, "without the model").to_be_disabled()
    edit.press("Control+Enter")
    expect(page.locator(".branched")).to_be_visible()
    assert here.text() == HARE, "a text needs no model"


def test_summaries_of_the_turns_before_it_are_kept(
    page: Page, own_site: Callable[..., Site]
) -> None:
    here = fill(Playground(page, own_site(delay=0.0, **OPTIONS)).open())
    say(here, FOUR, 5)  # and a summary of the two oldest turns before it
    begin(page, 4).fill("4")
    save(page)
    expect(page.locator(".turn"), "in place of the last answer").to_have_count(9)

    here.drawer.wait_stored(2)
    begin(page, 2).fill("3")
    save(page)
    expect(page.locator(".turn")).to_have_count(7)
    turns = page.locator(".turn").all()
    assert "summary" in (turns[4].get_attribute("class") or ""), "before the message"
    say(here, "5", 5)
    messages = contents(last_request(here))
    assert (messages[0], messages[2:]) == ("Summarise our conversation so far.", [THREE, "3", "5"])

    here.drawer.wait_stored(3)
    begin(page, 1).fill("2")
    save(page)
    expect(page.locator(".turn.summary")).to_have_count(0)
    say(here, "6", 3)
    assert contents(last_request(here)) == [ONE, ANSWER, TWO, "2", "6"]


def test_the_editor_and_the_edited_answer_pass_the_checks_of_accessibility(
    page: Page, site: Callable[..., Site]
) -> None:
    here = told(open_page(page, site(), color_scheme="dark"))
    page.set_viewport_size({"width": 360, "height": 740})
    edit = begin(page, 1)
    assert violations(page) == []
    assert here.overflow() == 0
    edit.fill(f"{GLAD} {'a long line of text ' * 20}")
    save(page)
    assert violations(page) == []
    assert here.overflow() == 0
