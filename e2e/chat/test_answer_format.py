"""Answers that follow a format, and the candidates that it masks."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from e2e.chat.answer_options import AnswerOptions
from e2e.playground import Playground
from e2e.site import Site

ASK = "Tell me a story about a fox"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}  # fmt: skip


def answer(play: Playground, n: int) -> None:
    """Send the message, and wait for the end of its answer, which is number `n`."""
    play.ask(ASK)
    expect(play.page.locator(".answer")).to_have_count(n)
    play.wait_done()


def test_an_answer_follows_its_format_and_masked_candidates_are_shown(
    page: Page, bundled: Site
) -> None:
    play = Playground(page, bundled).open()
    play.set(temperature=0.9, seed=4, max_tokens=12)
    options = AnswerOptions(play)
    options.format("Regex", "[0-9]{4}")
    expect(options.chips).to_have_text("Formatregex [0-9]{4}")
    answer(play, 1)
    assert re.fullmatch("[0-9]{4}", play.text())
    assert options.requests()[-1]["grammar"] == {"kind": "regex", "text": "[0-9]{4}"}

    page.evaluate("async () => (await import('/static/js/view.js')).pin(0)")
    masked = page.locator("#cands li.cut").filter(has_text="masked")
    expect(masked).not_to_have_count(0)
    assert "does not allow this token" in (masked.first.get_attribute("title") or "")
    expect(masked.first.locator(".w")).to_be_disabled()
    shown = masked.evaluate_all("(rows) => rows.map((row) => row.querySelector('.n').textContent)")
    rows = play.look.open("filters").table()
    wanted = [float(row["raw logits"]) for row in rows if row["cut by"] == "grammar"]
    assert [float(each) for each in shown] == pytest.approx(
        [100 * share for share in wanted[: len(shown)]], abs=0.06
    )


def test_the_other_formats_and_what_is_wrong_with_them(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    play.set(temperature=0.9, seed=4, max_tokens=60)
    options = AnswerOptions(play)
    options.format("Choice", "a red fox\n  an owl  \n")
    expect(options.chips).to_have_text("Formatone of 2 texts")
    answer(play, 1)
    assert play.text() in ("a red fox", "an owl")

    options.format("JSON schema", json.dumps(SCHEMA))
    answer(play, 2)
    found = json.loads(play.text())
    assert found["age"] in range(1, 10)

    hint = page.locator("#answer-format-hint")
    options.open()
    field = options.dialog.get_by_label("Format of the answer")
    for wrong, words in (("{", "not JSON"), ("[]", "is an object"), ("", "Write a JSON schema")):
        field.fill(wrong)
        expect(hint).to_contain_text(words)
        expect(field).to_have_attribute("aria-invalid", "true")
    field.fill('{"type": "colour"}')
    options.close()
    play.ask(ASK)
    expect(play.notice).to_contain_text("colour")
    expect(page.locator("#prompt")).to_have_value(ASK)  # the refused message is back
    options.chips.get_by_role("button").click()
    expect(options.chips).to_have_count(0)


def test_an_answer_that_is_continued_still_follows_its_format(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    play.set(temperature=0.9, seed=4, max_tokens=2)
    options = AnswerOptions(play)
    options.format("Regex", "([0-9]{4} ){3}")
    answer(play, 1)
    play.set(max_tokens=40)
    play.continue_button.click()
    play.wait_tokens(6)
    play.wait_done()
    assert re.fullmatch("([0-9]{4} ){3}", play.text())


REPLACE_BY_ITSELF = """async (at) => {
  const { replaceToken } = await import("/static/js/chat/replace-token-run.js");
  const { answer } = (await import("/static/js/view.js")).view;
  replaceToken(answer, at, [answer.tokens[at]]);
}"""


def test_a_branch_is_continued_and_branched_under_its_format(page: Page, bundled: Site) -> None:
    """The format has read each token of the answer once, also those that a branch was given."""
    play = Playground(page, bundled).open()
    play.set(temperature=0.9, seed=4, max_tokens=8)
    options = AnswerOptions(play)
    options.format("Regex", "[a-zA-Z ]{300}")
    answer(play, 1)
    n_prompt = len(play.messages.events("accepted")[0]["prompt"])
    for version, at in enumerate((4, 6, 2), start=2):
        page.evaluate(REPLACE_BY_ITSELF, at)
        expect(page.locator("#version")).to_have_text(f"{version}/{version}")
        play.wait_tokens(at + 9)
        play.wait_done()
    play.continue_button.click()
    play.wait_tokens(19)
    play.wait_done()
    asked = options.requests()[1:]
    assert [r["grammar"]["n_read"] for r in asked] == [len(r["ids"]) - n_prompt for r in asked]
    assert re.fullmatch("[a-zA-Z ]+", play.text())
