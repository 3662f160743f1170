"""The system prompt of a conversation: sent with every prompt, kept with the conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.look.test_looks import violations
from e2e.playground import Playground
from e2e.site import Site

SYSTEM = "Answer in rhymes.\n<b>Never</b> mention lamps."


def requests(play: Playground) -> list[dict[str, Any]]:
    return [message for message in play.messages.sent if message["type"] == "generate"]


@pytest.mark.quick
def test_it_is_the_first_message_of_every_request_and_counted(
    play: Callable[..., Playground],
) -> None:
    here = play()
    here.system.fill(SYSTEM)
    here.prompt.fill("One")
    messages = [Message("system", SYSTEM), Message("user", "One")]
    n = len(prompt_ids(here.site.engine.tokenizer, messages=messages))
    expect(here.page.get_by_test_id("count")).to_have_text(f"{n} tokens")
    here.write("One", 4)
    here.system.fill("Be brief.")
    here.write("Two", 4)
    first, second = requests(here)
    assert first["messages"][0] == {"role": "system", "content": SYSTEM}
    assert second["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    here.system.fill("")
    here.regenerate.click()
    here.wait_done()
    assert requests(here)[-1]["messages"][0]["role"] == "user"


def test_each_conversation_has_its_own(page: Page, play: Callable[..., Playground]) -> None:
    here = play()
    here.system.fill(SYSTEM)
    here.write("One", 4)
    here.start_new()
    expect(here.system).to_have_value("")
    here.write("Two", 4)
    drawer = here.drawer
    drawer.wait_stored(2)
    drawer.open("One")
    expect(here.system).to_have_value(SYSTEM)
    page.reload()
    here.wait_ready()
    expect(here.system).to_have_value(SYSTEM)
    here.system.fill("Changed.")
    here.system.press("Escape")
    expect(here.system).not_to_be_focused()
    drawer.open("Two")
    expect(here.system).to_have_value("")
    drawer.show().search.fill("changed")
    expect(drawer.rows).to_have_count(1)
    drawer.search.fill("")
    drawer.open("One")
    expect(here.system).to_have_value("Changed.")


def test_a_replay_shows_the_one_that_was_sent(
    page: Page, play: Callable[..., Playground], tmp_path: Any
) -> None:
    here = play()
    here.system.fill(SYSTEM)
    here.write("One", 4)
    path = here.playback.save(tmp_path / "made.json")
    here.start_new()
    here.playback.open(path)
    expect(here.system).to_have_value(SYSTEM)
    expect(here.system).not_to_be_editable()
    here.playback.leave.click()
    expect(here.system).to_have_value("")
    expect(here.system).to_be_editable()


def test_a_completion_has_none(play: Callable[..., Playground]) -> None:
    here = play()
    here.system.fill(SYSTEM)
    here.page.get_by_text("Completion", exact=True).click()
    expect(here.system).to_be_hidden()
    here.write("Once", 4)
    (request,) = requests(here)
    assert request["prompt"] == "Once"
    assert "messages" not in request


IGNORING = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
)
REFUSING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "{{ messages[0].content }}"
)


@pytest.mark.parametrize(
    ("template", "said"), [(IGNORING, "leaves the system prompt out"), (REFUSING, "no system role")]
)
def test_a_template_that_does_not_take_it_is_named(
    page: Page, own_site: Callable[..., Site], template: str, said: str
) -> None:
    here = own_site()
    here.engine.tokenizer.chat_template = template  # type: ignore[attr-defined]
    play = Playground(page, here).open()
    note = page.locator("#system-note")
    play.system.fill("Be brief.")
    play.system.blur()
    expect(note).to_contain_text(said)
    assert violations(page) == []
    play.system.fill("")
    play.system.blur()
    expect(note).to_have_text("")
