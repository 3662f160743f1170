"""Branches: other tokens are put in the place of written ones, and the text goes on from there."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from e2e.chat.branching import (
    ENDING,
    engine_tokens,
    force,
    look_at,
    other_than_drawn,
    row,
    sent,
    versions,
    waterfall_of,
    wrote,
)
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until

# ---- putting another one in ------------------------------------------------------------------


def test_a_candidate_is_written_instead_and_the_text_goes_on(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site()
    play, messages, tokens = wrote(page, here)
    first = play.text()
    other = other_than_drawn(tokens[12])
    look_at(play, 12)
    target = row(page, other["text"].strip())
    target.hover()
    hint = target.evaluate("(node) => getComputedStyle(node, '::after').content")
    assert hint == '"write this instead"'
    target.click()
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_tokens(53)
    play.wait_done()
    message = sent(messages)[-1]
    prompt = messages.events("accepted")[0]["prompt"]
    lead = [token["id"] for token in tokens[:12]]
    assert message["ids"] == [token["id"] for token in prompt] + [*lead, other["id"]]
    assert message["written"] == 13
    assert (message["params"]["seed"], message["params"]["first_index"]) == (11, 13)
    rest = "".join(token.text for token in engine_tokens(here, message))
    assert play.text() == "".join(t["text"] for t in tokens[:12]) + other["text"] + rest
    assert play.numbers() == list(range(53))
    was = tokens[12]["text"].strip()
    mark = page.locator(".mark-change")
    told = re.compile(rf"^forced ‘{other['text'].strip()}’, was ‘{was}’ \(p ([\d.e-]+)\)$")
    expect(mark).to_have_text(told)
    p = told.match(mark.inner_text())
    assert p is not None
    assert float(p[1]) == pytest.approx(math.exp(tokens[12]["logprob"]), rel=0.05)
    assert mark.evaluate("(node) => node.dataset.at") == "12"
    page.get_by_role("button", name="Previous version").click()
    expect(page.locator("#version")).to_have_text("1/2")
    assert play.text() == first


@pytest.mark.slow
def test_the_parents_measurements_are_those_of_the_branch_before_it_parts(
    page: Page, site: Callable[..., Site]
) -> None:
    play, messages, tokens = wrote(page, site())
    other = other_than_drawn(tokens[20])
    force(play, 20, other)
    play.wait_tokens(61)
    play.wait_done()
    judged = (
        messages.sent[-2]
        if messages.sent[-2]["type"] == "inspect"
        else sent(messages, "inspect")[-1]
    )
    assert judged["question"]["kind"] == "losses"
    assert judged["question"]["first"] == len(judged["question"]["ids"]) - 2
    notes = page.locator(".cands .c")
    for index, stats in (
        (0, tokens[0]["stats"]),
        (19, tokens[19]["stats"]),
        (20, tokens[20]["stats"]),
    ):
        look_at(play, index)
        residual = page.locator('#lrows tr[data-layer="7"] td').nth(3)
        shown = float(residual.inner_text())
        assert abs(shown / stats["layers"][7]["residual"] - 1) < 0.02
        said = notes.all_inner_texts()
        assert ("forced" in said) == (index == 20)
        assert "drawn" in said
    expect(page.locator("#draw")).to_contain_text("forced: no draw")
    expect(page.locator(".pick-row .w")).to_have_text(other["text"].strip())
    expect(page.locator("#plot")).to_have_attribute("aria-valuetext", re.compile(r"^token 21, “"))


@pytest.mark.slow
def test_the_token_that_was_drawn_anyway_gives_the_very_same_text(
    page: Page, site: Callable[..., Site]
) -> None:
    """Also inside a character of three tokens, and where the text ends."""
    here = site(text=ENDING, ends=True)
    play, messages, tokens = wrote(page, here, 9, max_tokens=200, top_p="0.2")
    text, n = play.text(), len(tokens)
    star = next(i for i, token in enumerate(tokens) if token["text"] == "✨")
    assert tokens[star - 1]["text"] == ""
    assert tokens[-1]["eos"]
    for at in (0, 3, star - 1, star, n - 2, n - 1):
        n_events, before = len(messages.events("token")), versions(play)
        look_at(play, at)
        page.locator(".cands .pick-row button").click()
        expect(page.locator("#version")).to_have_text(f"{before + 1}/{before + 1}")
        play.wait_done()
        expect(play.tokens).to_have_count(n)
        assert play.text() == text
        again = messages.events("token")[n_events:]
        assert len(again) == n - at - 1
        for token, parent in zip(again, tokens[at + 1 :], strict=True):
            for name in ("id", "text", "logprob", "draw", "candidates", "eos"):
                assert token[name] == parent[name]
        expect(page.locator(".mark-change").last).to_contain_text("as drawn")


def test_other_settings_act_from_the_branch_on(page: Page, site: Callable[..., Site]) -> None:
    play, messages, tokens = wrote(page, site(), temperature="0.7")
    play.set(temperature="1.3", seed=99)
    force(play, 10, other_than_drawn(tokens[10]))
    play.wait_tokens(51)
    play.wait_done()
    params = sent(messages)[-1]["params"]
    assert params["temperature"] == 1.3
    assert params["seed"] == 11, "the random numbers stay the run's"
    marks = page.locator(".mark-change")
    expect(marks).to_have_count(2)
    expect(marks.nth(1)).to_have_text("temperature 0.7 → 1.3")
    assert marks.nth(1).evaluate("(node) => node.dataset.at") == "11"
    page.evaluate("() => { location.hash = 'look=filters' }")
    for at, temperature in ((9, "0.7"), (11, "1.3")):
        page.locator("#plot").focus()
        page.keyboard.press("Home")
        for _ in range(at):
            page.keyboard.press("ArrowRight")
        expect(page.locator("#plot")).to_have_attribute("aria-valuenow", str(at + 1))
        asked = until(
            page, functools.partial(waterfall_of, messages, at), "the question about this token"
        )
        assert asked["params"]["temperature"] == float(temperature)
        assert asked["params"]["seed"] == 11


def test_words_of_ones_own_are_shown_as_tokens_and_put_in(
    page: Page, site: Callable[..., Site]
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    here = site()
    play, messages, tokens = wrote(page, here)
    at = next(i for i, token in enumerate(tokens) if i > 7 and token["text"].startswith(" "))
    look_at(play, at)
    field = page.get_by_label("Text to replace this token with")
    field.focus()
    expect(field).to_have_value(" ")
    field.press_sequentially("forest lamp ✨")
    cut = page.get_by_test_id("replace-token-pieces")
    expect(cut).to_contain_text("␣forest␣lamp")
    expect(cut).to_contain_text("6 tokens")
    field.press("Enter")
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_tokens(at + 46)
    play.wait_done()
    lead = "".join(token["text"] for token in tokens[:at])
    message = sent(messages)[-1]
    text = f"{lead} forest lamp ✨" + "".join(token.text for token in engine_tokens(here, message))
    assert play.text() == text
    was = tokens[at]["text"].strip()
    expect(page.locator(".mark-change")).to_contain_text(f"forced ‘forest lamp ✨’, was ‘{was}’")
    expect(field).to_have_value("")
    assert message["written"] == at + 6
    assert message["params"]["first_index"] == at + 6
    look_at(play, at + 1)
    expect(page.get_by_test_id("token-sub")).to_have_text(
        re.compile(r"^p [\d.e-]+ · [\d,]+\w\w choice$")
    )
    expect(page.locator(".cands .pick-row")).to_have_count(1)
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == play.text().strip()
    play.continue_button.click()
    play.wait_tokens(at + 86)
    play.wait_done()
    rest = sent(messages)[-1]
    prompt = [token["id"] for token in messages.events("accepted")[0]["prompt"]]
    assert rest["ids"][len(prompt) :][at : at + 6] == message["ids"][-6:], "what was put in"
    assert rest["params"]["first_index"] == at + 46, "the branch goes on where it ended"
    assert play.text() == text + "".join(token.text for token in engine_tokens(here, rest))
    play.regenerate.click()
    expect(page.locator("#version")).to_have_text("3/3")
    play.wait_done()
    assert "ids" not in sent(messages)[-1]


@pytest.mark.slow
def test_a_branch_of_a_branch_keeps_both_marks(page: Page, site: Callable[..., Site]) -> None:
    play, messages, tokens = wrote(page, site())
    force(play, 10, other_than_drawn(tokens[10]))
    play.wait_tokens(51)
    play.wait_done()
    later = messages.events("token")[-40:]
    force(play, 30, other_than_drawn(later[19]))
    play.wait_tokens(71)
    play.wait_done()
    assert [
        m.evaluate("(node) => node.dataset.at") for m in page.locator(".mark-change").all()
    ] == [
        "10",
        "30",
    ]
    message = sent(messages)[-1]
    assert message["written"] == 31
    assert message["params"]["first_index"] == 31
    expect(page.locator("#version")).to_have_text("3/3")


@pytest.mark.slow
def test_an_answer_that_was_continued_can_part_in_either_piece(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site()
    play, messages, _ = wrote(page, here, 12)
    play.continue_button.click()
    play.wait_tokens(24)
    play.wait_done()
    tokens = messages.events("token")
    prompts = [[t["id"] for t in event["prompt"]] for event in messages.events("accepted")]
    marks = page.locator(".mark-change")
    for version, (at, first, prompt) in enumerate(((18, 12, prompts[1]), (5, 0, prompts[0]))):
        if version:
            page.locator("#older").click()
            expect(page.locator("#version")).to_have_text("1/2")
        other = other_than_drawn(tokens[at])
        force(play, at, other)
        play.wait_tokens(at + 13)
        play.wait_done()
        message = sent(messages)[-1]
        lead = [token["id"] for token in tokens[first:at]]
        assert message["ids"][:-1] == prompt + lead
        assert message["written"] == at - first + 1
        assert message["params"]["first_index"] == at + 1, "of the seed, over both pieces"
        assert play.numbers() == list(range(at + 13))
        words = [token["text"] for token in tokens[:at]] + [other["text"]]
        words += [token.text for token in engine_tokens(here, message)]
        assert play.text() == "".join(words)
        said = marks.all_inner_texts()
        assert [text.split(" ")[0] for text in said] == (
            ["continued", "forced"] if first else ["forced"]
        )
        text = play.text()
        page.reload()
        play.wait_tokens(at + 13)
        expect(marks).to_have_count(len(said))
        assert play.text() == text
        assert versions(play) == version + 2


def test_the_end_of_the_text_can_be_put_in(page: Page, site: Callable[..., Site]) -> None:
    play, messages, tokens = wrote(
        page, site(text=ENDING, ends=True), 9, max_tokens=30, top_p="0.2"
    )
    last = len(tokens) - 1
    assert tokens[last]["eos"]
    force(play, last, other_than_drawn(tokens[last]))
    play.wait_done()
    expect(play.tokens).to_have_count(last + 31)
    look_at(play, last)
    page.locator(".cands li").filter(has_text="drawn").get_by_role("button").click()
    expect(page.locator("#version")).to_have_text("3/3")
    play.wait_done()
    expect(play.tokens).to_have_count(last + 1)
    expect(page.locator(".tok.eos")).to_have_count(1)
    expect(page.locator(".mark-change").last).to_contain_text("forced the end, was ‘")
    assert play.text() == "".join(token["text"] for token in tokens)
    done = messages.events("done")[-1]
    assert (done["reason"], done["completion_tokens"]) == ("eos", 0)


# ---- hands -----------------------------------------------------------------------------------


def test_the_keyboard_alone(page: Page, site: Callable[..., Site]) -> None:
    here = site()
    play, messages, tokens = wrote(page, here)
    play.core.focus()
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#tok-no")).to_have_text("30")
    page.locator("#tok-next").focus()
    page.keyboard.press("Tab")
    words = page.locator(".cands .w:enabled")
    expect(words.first).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(words.nth(2)).to_be_focused()
    page.keyboard.press("End")
    expect(words.last).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    word = words.nth(1).inner_text()
    expect(words.nth(1)).to_have_accessible_name(re.compile(f"^{re.escape(word)}: write"))
    page.keyboard.press("Enter")
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_tokens(70)
    play.wait_done()
    lead = "".join(token["text"] for token in tokens[:29])
    other = next(c for c in tokens[29]["candidates"] if c["id"] == sent(messages)[-1]["ids"][-1])
    assert other["text"].strip() == word
    rest = "".join(token.text for token in engine_tokens(here, sent(messages)[-1]))
    assert play.text() == lead + other["text"] + rest
    page.keyboard.press("Tab")
    expect(page.locator("#replace-token-text")).to_be_focused()
    page.keyboard.type("xyz")
    page.keyboard.press("Escape")
    expect(page.locator("#replace-token-text")).to_have_value("")


def test_a_phone_writes_another_word_with_a_tap(page: Page, site: Callable[..., Site]) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    play = Playground(page, site()).open()
    play.ask()
    play.wait_tokens(12)
    play.stop.click()
    play.wait_done()
    play.tokens.nth(5).click()
    rows = page.locator(".cands li:not(.pick-row):has(button:enabled)")
    box = rows.first.bounding_box()
    assert box is not None
    assert box["height"] >= 32
    field = page.locator("#replace-token-text").bounding_box()
    last = page.locator(".cands li").last.bounding_box()
    assert field is not None
    assert last is not None
    assert field["y"] >= last["y"] + last["height"] - 1, "nothing lies over the rows"
    assert field["height"] >= 40
    word = rows.first.get_by_role("button").inner_text()
    rows.first.click()
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_tokens(8)
    assert play.overflow() <= 0
    page.keyboard.press("Escape")
    play.stop.click()
    play.wait_done()
    expect(page.locator(".mark-change")).to_contain_text(f"forced ‘{word}’")
