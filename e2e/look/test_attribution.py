"""Attribution: how likely the answer is without each part of the prompt, by the engine itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from app import tale
from e2e.bundled import ask_engine
from e2e.chat.answer_options import AnswerOptions
from e2e.look.panel import LookPanel
from e2e.look.test_looks import violations
from e2e.playground import Playground
from e2e.site import Site
from gpu.inspection.requests import Knockout, Losses

ASK = "Tell me a story about a fox who finds a lantern"
COMPLETE_MS = 60_000
SMALL_MESSAGES = """async () => {
  const { state } = await import("/static/js/state.js");
  state.hello.limits.message_bytes = 10;
}"""


def measure(look: LookPanel) -> list[dict[str, str]]:
    """Measure to the end; return the rows of the file."""
    button = look.panel.locator(".ab-side .send")
    expect(button).to_have_text("Measure")
    button.click()
    expect(button).to_be_hidden(timeout=COMPLETE_MS)
    return look.csv()


def choose(look: LookPanel, name: str) -> None:
    look.panel.get_by_text(name, exact=True).click()


def drag(look: LookPanel, first: int, last: int) -> None:
    """Drag over tokens of the prompt."""
    for i, act in ((first, "down"), (last, "up")):
        look.panel.locator(".ls-tok").nth(i).hover()
        getattr(look.page.mouse, act)()


@dataclass(frozen=True)
class Asked:
    """A page with an answer: ids and texts of its prompt, and ids of what was written."""

    look: LookPanel
    prompt: list[int]
    texts: list[str]
    written: list[int]


def answered(page: Page, bundled: Site, ask: str, n_tokens: int) -> Asked:
    """Ask on the page, and open Attribution once `n_tokens` are written."""
    play = Playground(page, bundled).open()
    play.set(max_tokens=n_tokens, seed=4)
    play.ask(ask)
    play.wait_tokens(n_tokens)
    play.wait_done()
    prompt = play.messages.events("accepted")[-1]["prompt"]
    return Asked(
        play.look.open("attribution"),
        [token["id"] for token in prompt],
        [token["text"] for token in prompt],
        [token["id"] for token in play.messages.events("token")],
    )


def logprob(site: Site, ids: list[int], first: int) -> float:
    """Log-probability of ids[first:] after those before, summed in double precision."""
    answer = ask_engine(site, Losses(ids, top=1, first=first - 1))
    return float(answer["logprob"].astype(np.float64).sum())


@pytest.mark.quick
def test_each_word_is_left_out_and_the_engine_says_what_that_does(
    page: Page, bundled: Site
) -> None:
    asked = answered(page, bundled, ASK, 12)
    look, prompt, texts, written = asked.look, asked.prompt, asked.texts, asked.written
    choose(look, "Whole answer")
    rows = measure(look)
    assert [row["left out"].strip() for row in rows] == ASK.split()
    start = next(i for i, text in enumerate(texts) if text.strip() == "Tell")
    whole = logprob(bundled, [*prompt, *written], len(prompt))
    for i, row in enumerate(rows):
        assert texts[start + i] == row["left out"], "each word is one token here"
        left = [*prompt[: start + i], *prompt[start + i + 1 :]]
        without = logprob(bundled, [*left, *written], len(left))
        assert float(row["log-probability with it"]) == pytest.approx(whole, abs=1e-4)
        assert float(row["without it"]) == pytest.approx(without, abs=1e-4)
        assert float(row["difference"]) == pytest.approx(whole - without, abs=2e-4)
    best = max(rows, key=lambda row: float(row["difference"]))
    expect(look.panel.locator(".ab-one")).to_contain_text(f"Without “{best['left out'].strip()}”")
    choose(look, "This token")
    rows = measure(look)
    at = len(prompt) + len(written) - 1
    whole = logprob(bundled, [*prompt, *written][: at + 1], at)
    assert float(rows[0]["log-probability with it"]) == pytest.approx(whole, abs=1e-5)


def test_words_are_swapped_and_positions_switched_off_for_a_typed_answer(
    page: Page, bundled: Site
) -> None:
    asked = answered(page, bundled, "The fox saw the owl", 4)
    look, prompt, texts = asked.look, asked.prompt, asked.texts
    choose(look, "Typed")
    expect(look.panel.locator(".ab-say")).to_contain_text("Type an answer of your own")
    look.panel.get_by_label("Answer to measure").fill("The owl was")
    look.panel.get_by_label("Answer to measure").press("Enter")
    choose(look, "Swapped")
    *rows, off = measure(look)
    typed = bundled.engine.tokenizer.encode("The owl was", bos=False, specials=False)
    whole = logprob(bundled, [*prompt, *typed], len(prompt))
    assert float(rows[0]["log-probability before"]) == pytest.approx(whole, abs=1e-4)
    start = texts.index("The")
    for i, row in enumerate(rows[:-1]):
        a, b = start + i, start + i + 1
        assert texts[a] == row["swapped with the next"], "each word is one token here"
        order = [*prompt[:a], prompt[b], prompt[a], *prompt[b + 1 :]]
        after = logprob(bundled, [*order, *typed], len(prompt))
        assert float(row["after"]) == pytest.approx(after, abs=1e-4)
    assert rows[-1]["after"] == "", "nothing comes after the last word"
    question = Losses([*prompt, *typed], top=5, first=len(prompt) - 1, rope=False)
    found = ask_engine(bundled, question)
    unplaced = float(found["logprob"].astype(np.float64).sum())
    assert off["swapped with the next"] == "rotary positions off"
    assert float(off["after"]) == pytest.approx(unplaced, abs=1e-4)
    expect(look.panel.locator(".ab-one")).to_contain_text("With rotary positions switched off")
    shares = look.panel.locator(".ab-likely tbody tr td:nth-child(4)").all_inner_texts()
    assert [float(share) for share in shares] == pytest.approx(
        100 * np.exp(found["top_logprobs"][0].astype(np.float64)), abs=0.06
    )


@pytest.mark.quick
def test_attention_to_each_word_is_masked_in_windows_of_layers(page: Page, bundled: Site) -> None:
    asked = answered(page, bundled, "The fox saw the owl", 4)
    look, prompt, texts, written = asked.look, asked.prompt, asked.texts, asked.written
    choose(look, "Whole answer")
    choose(look, "Masked")
    rows = measure(look)
    n_layers = json.loads((tale.model_dir() / "config.json").read_text())["num_hidden_layers"]
    start = texts.index("The")
    words = ["The", " fox", " saw", " the", " owl"]
    assert [row["masked"] for row in rows] == words * (1 + n_layers)
    layers = ["all layers", *(f"layer {layer}" for layer in range(n_layers))]
    assert [row["layers"] for row in rows[:: len(words)]] == layers
    ids, first = [*prompt, *written], len(prompt) - 1
    whole = logprob(bundled, ids, len(prompt))
    for i in (1, len(words) + 4, len(rows) - 3):
        row, place = rows[i], start + i % len(words)
        layer = i // len(words) - 1
        ends = (0, n_layers) if layer < 0 else (layer, layer + 1)
        question = Losses(ids, top=1, first=first, knockout=Knockout(place, place + 1, *ends))
        after = float(ask_engine(bundled, question)["logprob"].astype(np.float64).sum())
        assert float(row["log-probability before"]) == pytest.approx(whole, abs=1e-4)
        assert float(row["after"]) == pytest.approx(after, abs=1e-4)
        assert float(row["difference"]) == pytest.approx(whole - after, abs=2e-4)
    grid = look.panel.get_by_role("slider", name="Part of the prompt and layers")
    grid.focus()
    for key in ("Home", *["ArrowUp"] * len(words), "ArrowDown", "ArrowRight", "ArrowRight"):
        grid.press(key)
    expect(grid).to_have_attribute(
        "aria-valuetext", re.compile("“fox” masked in layer 1, the answer")
    )
    expect(look.panel.locator(".ab-one")).to_contain_text(
        "With attention to “fox” masked in layer 1"
    )
    assert violations(page) == []


@pytest.mark.quick
def test_attention_to_a_selection_is_masked_head_by_head(page: Page, bundled: Site) -> None:
    asked = answered(page, bundled, "The fox saw the owl", 4)
    look, prompt, texts, written = asked.look, asked.prompt, asked.texts, asked.written
    choose(look, "Whole answer")
    choose(look, "Masked")
    choose(look, "1 head")
    expect(look.panel.locator(".ab-say")).to_contain_text("Select tokens of the prompt")
    start = texts.index(" fox")
    drag(look, start, start + 1)
    expect(look.panel.locator(".ab-say")).to_contain_text("attention to “fox saw” were masked")
    rows = measure(look)
    sizes = json.loads((tale.model_dir() / "config.json").read_text())
    n_layers, n_heads = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    heads = ["all", *(str(head) for head in range(n_heads))]
    assert [(row["layers"], row["head"]) for row in rows] == [
        ("all layers", "all"),
        *((f"layer {layer}", head) for layer in range(n_layers) for head in heads),
    ]
    for row in (rows[0], rows[1], rows[2 + n_heads], rows[-1]):
        first, end = (0, n_layers)
        if row["layers"] != "all layers":
            first = int(row["layers"].removeprefix("layer "))
            end = first + 1
        head = None if row["head"] == "all" else int(row["head"])
        knockout = Knockout(start, start + 2, first, end, head)
        question = Losses([*prompt, *written], top=1, first=len(prompt) - 1, knockout=knockout)
        after = float(ask_engine(bundled, question)["logprob"].astype(np.float64).sum())
        assert row["masked"] == " fox saw"
        assert float(row["after"]) == pytest.approx(after, abs=1e-4)
    grid = look.panel.get_by_role("slider", name="Heads and layers")
    grid.focus()
    for key in (*["ArrowUp"] * (1 + n_heads), "Home", "ArrowRight", "ArrowDown", "ArrowDown"):
        grid.press(key)
    expect(look.panel.locator(".ab-one")).to_contain_text(
        "With attention to “fox saw” masked in head 1 of layer 0, the answer"
    )
    strongest = max(
        (row for row in rows if row["head"] != "all"), key=lambda row: abs(float(row["difference"]))
    )
    expect(look.panel.locator(".ab-list li .w").first).to_have_text(
        f"{strongest['layers']}, head {strongest['head']}"
    )
    assert violations(page) == []


def test_a_run_of_tokens_is_selected_by_clicks_and_keys(page: Page, bundled: Site) -> None:
    asked = answered(page, bundled, "The fox saw the owl", 4)
    look, prompt, texts, written = asked.look, asked.prompt, asked.texts, asked.written
    choose(look, "Whole answer")
    choose(look, "Selection")
    say, tokens = look.panel.locator(".ab-say"), look.panel.locator(".ls-tok")
    start = texts.index(" fox")
    tokens.nth(start + 2).click()
    expect(say).to_contain_text("without “the”")
    tokens.nth(start).click()
    expect(say).to_contain_text("without “fox saw the”")
    (row,) = measure(look)
    left = [*prompt[:start], *prompt[start + 3 :]]
    without = logprob(bundled, [*left, *written], len(left))
    assert row["left out"] == " fox saw the"
    assert float(row["without it"]) == pytest.approx(without, abs=1e-4)
    tokens.nth(start + 3).click()
    expect(say).to_contain_text("without “owl”")
    tokens.nth(start + 1).click(modifiers=["Shift"])
    expect(say).to_contain_text("without “saw the owl”")
    tokens.nth(start + 1).focus()
    for key, expected in (
        ("Shift+ArrowRight", "without “the owl”"),
        ("Shift+ArrowLeft", "without “saw the owl”"),
        ("Shift+ArrowLeft", "without “fox saw the owl”"),
        ("Enter", "without “fox”"),
        ("ArrowRight", "without “fox”"),
        ("Enter", "without “fox saw”"),
    ):
        page.keyboard.press(key)
        expect(say).to_contain_text(expected)
    choose(look, "Swapped")
    expect(say).to_contain_text("with each two of the 5 parts of the prompt swapped")
    expect(look.panel.get_by_role("radio", name="Selection")).to_be_disabled()


def test_the_part_that_is_looked_at_becomes_the_selection(page: Page, bundled: Site) -> None:
    look = answered(page, bundled, "The fox saw the owl", 4).look
    choose(look, "Masked")
    measure(look)
    look.panel.get_by_role("button", name="owl").click()
    choose(look, "1 head")
    expect(look.panel.locator(".ab-say")).to_contain_text("attention to “owl” were masked")


def test_what_cannot_be_measured_is_said_and_a_measurement_stops(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site()).open()
    play.set(max_tokens=8)
    play.ask(ASK)
    play.wait_tokens(8)
    play.wait_done()
    look = play.look.open("attribution")
    choose(look, "Tokens")
    button = look.panel.locator(".ab-side .send")
    button.evaluate("(button) => { button.click(); button.click(); }")  # and stop at once
    expect(look.panel.locator(".ab-say")).to_contain_text("How likely would")
    expect(button).to_have_text("Measure")
    assert {row["without it"] for row in look.csv()} == {""}
    assert all(row["without it"] for row in measure(look))
    choose(look, "Words")
    page.evaluate(SMALL_MESSAGES)
    button.click()
    expect(look.panel.locator(".ab-say")).to_contain_text("too long for one request")
    choose(look, "Tokens")
    expect(look.panel.locator(".ab-say")).to_contain_text("With the whole prompt")
    page.evaluate("async () => (await import('/static/js/view.js')).pin(-3)")
    expect(look.message).to_contain_text("This token is part of the prompt.")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tokens", ["na", "\ufffd", "\ufffd", "ve", " fox", "."]),
        ("words", ["naïve", " fox", "."]),
        ("messages", ["naïve fox."]),
    ],
)
def test_a_character_that_is_split_over_tokens_is_in_one_word(
    call: Callable[..., Any], kind: str, expected: list[str]
) -> None:
    pieces = [b"na", b"\xc3", b"\xaf", b"ve", b" fox", b"."]
    parts = [
        {
            "text": piece.decode(errors="replace"),
            "bytes": piece.hex(),
            "special": False,
            "message": 0,
        }
        for piece in pieces
    ]
    units = call("look/attribution/units", "unitsOf", parts, kind)
    assert [unit["text"] for unit in units] == expected


def test_a_prompt_with_tools_is_cut_with_them(page: Page, site: Callable[..., Site]) -> None:
    """Without them it has other tokens, of which messages and template would not be known."""
    play = Playground(page, site(context=4096)).open()
    play.set(max_tokens=8)
    options = AnswerOptions(play)
    options.open().check("Calculator")
    options.close()
    play.ask(ASK)
    play.wait_done()
    look = play.look.open("attribution")
    choose(look, "Messages")
    expect(look.panel.locator(".ab-say")).to_contain_text("How likely would")
    assert [row["left out"] for row in look.csv()] == [ASK]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tokens", ["The", " ani", "mal", ".", " It", " slept.", "Why", "?"]),
        ("words", ["The", " animal", ".", " It", " slept.", "Why", "?"]),
        ("paragraphs", ["The animal.\n\n", " It slept.", "Why?"]),
        ("messages", ["The animal.\n\n It slept.", "Why?"]),
    ],
)
def test_parts_of_a_prompt_are_put_together(
    call: Callable[..., Any], kind: str, expected: list[str]
) -> None:
    texts = [("<|im_start|>", None), ("user", None), ("The", 0), (" ani", 0), ("mal", 0)]
    texts += [
        (".", 0),
        ("\n", 0),
        ("\n", 0),
        (" It", 0),
        (" slept.", 0),
        ("<|im_end|>", None),
        ("Why", 1),
        ("?", 1),
    ]
    parts = [
        {"text": text, "special": text.startswith("<|"), "message": message}
        for text, message in texts
    ]
    units = call("look/attribution/units", "unitsOf", parts, kind)
    assert [unit["text"] for unit in units] == expected
    for unit in units:
        assert "".join(text for text, _ in texts[unit["from"] : unit["to"]]) == unit["text"]
