"""Turns of the timeline: the chunks of each prompt, against the events of the runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.chat.answer_options import AnswerOptions
from e2e.playground import Playground
from e2e.site import Site

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6 * 700"}}\n</tool_call>'
ASKED = "What is six times seven hundred? Café ✨"


@pytest.fixture
def called(page: Page, site: Callable[..., Site]) -> Playground:
    """A conversation with two answers: a call, and one after its result."""
    play = Playground(page, site(text=CALL, ends=True, context=4096, delay=0)).open()
    play.set(temperature=0, max_tokens=200)
    options = AnswerOptions(play)
    options.open().check("Calculator")
    options.close()
    play.ask(ASKED)
    options.cards.get_by_role("button", name="Run tool").press("Enter")
    expect(options.cards).to_have_count(2)
    play.wait_done()
    return play


def turns_table(play: Playground) -> list[dict[str, str]]:
    look = play.look.open("timeline")
    look.panel.get_by_text("Turns", exact=True).click()
    expect(look.panel.locator(".tn-summary")).to_be_visible()
    return look.csv()


@pytest.mark.quick
def test_chunks_and_times_are_those_of_the_events(called: Playground) -> None:
    rows = turns_table(called)
    accepted = called.messages.events("accepted")
    done = called.messages.events("done")
    assert len(accepted) == len(done) == 2
    for i, (begun, end) in enumerate(zip(accepted, done, strict=True)):
        own = [row for row in rows if row["answer"] == str(i + 1)]
        chunks = [row for row in own if row["chunk"] and "written" not in row["what"]]
        assert [row["chunk"] for row in chunks] == ["A", "B", "C", "D"][: 2 + 2 * i]
        (prompt,) = (row for row in own if row["what"] == "prompt")
        assert int(prompt["tokens"]) == len(begun["prompt"])
        assert int(prompt["reused"]) == end["timings"]["cache_n"]
        assert int(prompt["computed"]) == end["timings"]["prompt_n"]
        assert float(prompt["time, ms"]) == end["timings"]["prompt_ms"]
        for name in ("tokens", "reused", "computed"):
            assert sum(int(row[name]) for row in chunks) == int(prompt[name])
        (written,) = (row for row in own if "written" in row["what"])
        assert int(written["tokens"]) == end["completion_tokens"]
        assert float(written["time, ms"]) == end["timings"]["predicted_ms"]
        assert texts_of(begun, chunks)["B"].startswith("What is six times seven hundred?")
    assert texts_of(accepted[1], chunks)["C"].startswith('"calculator"')
    assert texts_of(accepted[1], chunks)["D"].startswith("4200")
    (tools,) = (row for row in rows if row["what"] == "tools")
    assert 0 <= float(tools["time, ms"]) < 10_000


def texts_of(accepted: dict[str, Any], chunks: list[dict[str, str]]) -> dict[str, str]:
    """Return the text of each chunk of a prompt."""
    texts, at = {}, 0
    for row in chunks:
        end = at + int(row["tokens"])
        texts[row["chunk"]] = "".join(token["text"] for token in accepted["prompt"][at:end])
        at = end
    return texts


def test_messages_whose_characters_are_split_are_chunks_of_their_own(
    page: Page, site: Callable[..., Site]
) -> None:
    """And what was moved from another place of the cache was not computed."""
    Playground(page, site()).open()
    messages = [("user", "你好"), ("assistant", "“Ja”, sagte 她."), ("user", "é")]
    texts = ["<s>", "<user>", *"\ufffd" * 4, "<end>", "<model>", *"\ufffd\ufffd", "Ja", "”"]
    texts += [", sagte ", *"\ufffd\ufffd", ".", "<end>", "<user>", *"\ufffd\ufffd", "<model>"]
    segment = {
        "prompt": [{"id": i, "text": text} for i, text in enumerate(texts)],
        "originalRequest": {
            "messages": [{"role": role, "content": text} for role, text in messages]
        },
        "dropped": [],
        "toolCalls": [],
        "accepted": True,
        "textOnly": None,
        "timings": None,
        "nTokens": 5,
        "nGiven": 0,
        "promptReused": 3,
        "promptMoved": [{"first": 8, "end": 12, "source": 40}],
    }
    (run,) = page.evaluate(
        """async (segment) => {
          const { runsOf } = await import("/static/js/look/timeline/chunks.js");
          return runsOf([{ role: "model", answers: [{ segments: [segment] }], shown: 0 }]);
        }""",
        segment,
    )
    assert [(chunk["kind"], chunk["from"], chunk["end"]) for chunk in run["prompt"]] == [
        ("system", 0, 2),
        ("user", 2, 8),
        ("answer", 8, 18),
        ("user", 18, 21),
    ]
    assert [chunk["reused"] for chunk in run["prompt"]] == [2, 1, 4, 0]
    assert (run["nReused"], run["nMoved"]) == (7, 4)


def test_the_strips_say_what_was_reused(page: Page, bundled: Site) -> None:
    """The prefix cache has the first prompt when the result of the call is read."""
    play = Playground(page, bundled).open()
    play.set(temperature=1, seed=5, max_tokens=40)
    options = AnswerOptions(play)
    options.open().check("Clock")
    options.close()
    play.ask("What time is it?")
    options.cards.get_by_role("button", name="Run tool").press("Enter")
    expect(page.locator(".answer")).to_have_count(2)
    play.wait_done()
    turns_table(play)
    end = play.messages.events("done")[1]["timings"]
    assert end["cache_n"] > 0
    second = play.look.panel.locator(".tn-row").nth(1)
    expect(second.locator("[data-how=reused]")).not_to_have_count(0)
    expect(second).to_contain_text(
        f"{end['prompt_n']} of {end['cache_n'] + end['prompt_n']} prompt"
    )
    expect(play.look.panel.locator(".tn-summary")).to_contain_text("2 answers: reading prompts")
    for width in (360, 768, 1366):
        page.set_viewport_size({"width": width, "height": 800})
        assert play.overflow() == 0
