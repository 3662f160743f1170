"""Comparing settings: what each column writes, where two part and why, and the controls."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.bundled import ask_engine
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from gpu import Interventions, InterventionSpan, LayerFactor, SamplingParams
from gpu.inspection.requests import Waterfall

PROMPT = "Tell me a story about a fox"


def test_columns_write_what_their_settings_give_in_one_batch(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, here := site(delay=0.01))
    play.set(max_tokens=24, seed=5, temperature=0.9)
    compare = play.compare.open(PROMPT)
    expect(compare.words(1)).to_have_text("greedy")
    compare.add.click()
    play.set(temperature=1.5, seed=8)
    expect(compare.words(2)).to_contain_text("temperature 1.50")
    expect(compare.words(2)).to_contain_text("seed 8")
    expect(page.get_by_role("heading", name="Sampling, column C")).to_be_visible()
    compare.run()
    texts = compare.texts()
    kinds = [message["type"] for message in play.messages.sent]
    first = kinds.index("generate")
    assert kinds[first : first + 3] == ["generate"] * 3
    for text, message in zip(texts, play.reach.requests(), strict=True):
        written = here.reference(PROMPT, **message["params"])
        assert text == "".join(token.text for token in written)
    assert len({str(message["params"]) for message in play.reach.requests()}) == 3
    parts = [page.locator(".cmp-column").nth(i).locator(".tok.parts") for i in range(3)]
    for i in (1, 2):
        same = 0
        ids = [compare.tokens(n).all_inner_texts() for n in (0, i)]
        while ids[0][same] == ids[1][same]:
            same += 1
        expect(parts[i]).to_have_attribute("data-i", str(same))
    expect(parts[0]).to_have_count(0)
    play.look.tab("Tokens").click()
    play.look.tab("Compare").click()
    assert compare.texts() == texts
    page.keyboard.press("Escape")
    assert page.locator("#s-temperature").input_value() == "0.9"
    expect(page.get_by_role("heading", name="Sampling", exact=True)).to_be_visible()


def test_the_controls_act_on_the_selected_column_while_it_is_written(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.04))
    play.set(max_tokens=150)
    compare = play.compare.open(PROMPT)
    compare.go.click()
    compare.tokens(1).nth(3).wait_for()
    compare.pick(1)
    play.slide("temperature", 1.3)
    mark = compare.columns.nth(1).locator(".mark-change")
    expect(mark).to_contain_text("temperature 0 → 1.3")
    expect(compare.columns.nth(0).locator(".mark-change")).to_have_count(0)
    updates = [message for message in play.messages.sent if message["type"] == "update"]
    assert {message["id"] for message in updates} == {play.reach.requests()[1]["id"]}
    compare.act("Stop", 1).click()
    expect(compare.columns.nth(1)).to_contain_text("stopped")
    expect(compare.act("Stop", 0)).to_be_visible()
    compare.stop_all.click()
    compare.wait_done()
    expect(compare.columns.nth(0)).to_contain_text("stopped")
    # The core sample and the panels beside it show the token that is focused in a column.
    compare.strip.focus()
    compare.strip.press("Home")
    expect(page.locator("#tok-no")).to_have_text("1")
    expect(compare.tokens(1).nth(0)).to_have_class(re.compile(r"\bon\b"))
    compare.strip.press("ArrowUp")
    expect(compare.columns.nth(0).locator(".cmp-pick")).to_have_attribute("aria-pressed", "true")
    assert "B “" in str(compare.strip.get_attribute("aria-valuetext"))


def test_a_column_becomes_an_answer_of_the_conversation(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.01))
    play.write(PROMPT, n=10)
    first = play.text()
    compare = play.compare.open()
    expect(compare.prompt).to_have_value(PROMPT)
    compare.run()
    written = compare.texts()[1]
    compare.act("Take B", 1).click()
    expect(play.look.panel).to_be_hidden()
    assert play.text() == written != first
    expect(page.locator("#version")).to_have_text("2/2")
    assert page.locator("#n-temperature").input_value() == "0.00"
    play.ask("And then?")
    play.wait_done()
    messages = play.reach.requests()[-1]["messages"]
    assert [message["content"] for message in messages] == [PROMPT, written, "And then?"]
    play.compare.open()
    why = "The conversation has gone on since."
    expect(compare.act("Take A", 0)).to_have_attribute("title", why)
    expect(compare.act("Take B", 1)).to_be_disabled()


def test_a_running_column_goes_on_in_the_conversation(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.03))
    play.set(max_tokens=60)
    compare = play.compare.open("A new prompt")
    compare.go.click()
    compare.tokens(0).nth(2).wait_for()
    compare.act("Take A", 0).click()
    play.wait_tokens(60)
    play.wait_done()
    expect(page.locator(".said")).to_have_text("A new prompt")


def test_a_lost_connection_loses_no_token_of_a_column(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, here := site(delay=0.03))
    play.route_sockets()
    play.open()
    play.set(max_tokens=40, seed=4)
    compare = play.compare.open(PROMPT)
    compare.go.click()
    compare.tokens(1).nth(5).wait_for()
    play.cut()
    compare.tokens(1).nth(39).wait_for()
    compare.wait_done()
    for text, message in zip(compare.texts(), play.reach.requests(), strict=True):
        written = here.reference(PROMPT, **message["params"])
        assert text == "".join(token.text for token in written)


def test_a_refusal_is_shown_in_each_column(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site())
    compare = play.compare.open("word " * 600)
    compare.run()
    for number in (0, 1):
        expect(compare.columns.nth(number)).to_contain_text("but the context holds 512")
    expect(play.notice).to_be_hidden()
    compare.prompt.fill(PROMPT)
    play.set(max_tokens=4)
    compare.run()
    assert compare.tokens(0).count() == 4


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 360)])
def test_it_can_be_used_by_everyone(
    page: Page, site: Callable[..., Site], theme: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900 if width > 767 else 740})
    play = open_page(page, site(delay=0.04), color_scheme=theme)
    compare = play.compare.open(PROMPT)
    compare.prompt.press("Enter")
    compare.tokens(1).nth(5).wait_for()
    assert violations(page) == []
    compare.stop_all.click()
    compare.wait_done()
    expect(compare.reason).to_contain_text("differs from A")
    assert violations(page) == []
    assert play.overflow() == 0
    if width < 768:  # one under the other, none over another
        boxes = [compare.columns.nth(i).bounding_box() for i in (0, 1)]
        first, second = boxes
        assert first is not None
        assert second is not None
        assert first["y"] + first["height"] <= second["y"]
        assert first["width"] > 300


def test_the_reason_has_the_logits_of_the_engine(page: Page, bundled: Site) -> None:
    """An MLP is off in column B: the logits of both tokens, and what moved, are the engine's."""
    play = Playground(page, bundled).open()
    page.get_by_role("button", name="Greedy", exact=True).click()
    play.set(max_tokens=40)
    play.compare.open(PROMPT).pick(1)
    page.get_by_role("button", name="Greedy", exact=True).click()
    play.reach.open().cell("mlp 3").click()
    page.keyboard.press("0")
    compare = play.compare.open()
    expect(compare.words(1)).to_have_text("MLP 3 off")
    compare.run()
    expect(compare.reason).to_contain_text("The logits differ. MLP 3 off moved that of")
    at = int(str(compare.columns.nth(1).locator(".parts").get_attribute("data-i")))
    written = [play.reach.ids(number) for number in (0, 1)]
    prompt = prompt_ids(bundled.engine.tokenizer, None, [Message("user", PROMPT)])
    ids = [*prompt, *written[0][:at]]
    tokens = [run[at] for run in written]
    off = InterventionSpan(0, Interventions(mlp=(LayerFactor(3, 0.0),)))
    sides = []
    for spans in ((), (off,)):
        question = Waterfall(
            ids, len(ids) - 1, SamplingParams(temperature=0.0, seed=1), at, 5, spans, also=tokens
        )
        answer = ask_engine(bundled, question)
        sides.append(dict(zip(answer["ids"].tolist(), answer["logit"].tolist(), strict=True)))
    shown = compare.reason.locator("tbody tr")
    for row, token in enumerate(tokens):
        cells = shown.nth(row).locator("td").all_inner_texts()
        assert [float(cell) for cell in cells[:2]] == [round(s[token], 2) for s in sides]
        moved = sides[1][token] - sides[0][token]
        assert float(cells[2].replace("−", "-")) == pytest.approx(moved, abs=0.006)
    expect(play.look.source).to_contain_text("step of 2 rows")


@pytest.mark.parametrize(
    ("temperatures", "says"),
    [
        (
            (0, 1),
            "Same logits, other choice: A took the most likely token, B drew with 0.250 at 1.00 "
            "(watermark off against 4.00).",
        ),
        ((0, 0), "Same logits, both greedy, other settings: watermark off against 4.00."),
    ],
)
def test_the_reason_names_the_watermark_of_one_side(
    page: Page, site: Callable[..., Site], temperatures: tuple[float, float], says: str
) -> None:
    play = open_page(page, site())
    text = play.page.evaluate(
        """async (temperatures) => {
          const { explain } = await import("/static/js/look/compare/words.js");
          const { state } = await import("/static/js/state.js");
          const settings = temperatures.map((temperature, i) =>
            ({ ...state.settings, temperature, watermark_bias: 4 * i, seed: 1 }));
          const sides = temperatures.map((temperature) =>
            ({ logits: new Map(), after: new Map(), draw: 0.25, greedy: temperature === 0 }));
          const same = { tokens: [], moved: false, prompts: false };
          return explain({ names: ["A", "B"], settings, sides, ...same });
        }""",
        temperatures,
    )
    marks = "The watermark of B favours green tokens, which may have lower logits."
    assert text == f"{says} {marks}"


def test_a_column_has_a_prompt_of_its_own(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    page.get_by_role("button", name="Greedy", exact=True).click()
    play.set(max_tokens=40)
    compare = play.compare.open("Tell me a story about a dog who finds a cat")
    own = "Tell me a story about a cat who finds a dog"
    compare.pick(1)
    page.get_by_role("button", name="Greedy", exact=True).click()
    compare.own_prompt(1).fill(own)
    expect(compare.words(1)).to_have_text("another prompt")
    compare.own_prompt(1).press("Enter")
    compare.wait_done()
    asked = [message["messages"][-1]["content"] for message in play.reach.requests()]
    assert asked == ["Tell me a story about a dog who finds a cat", own]
    expect(compare.reason).to_contain_text("The logits differ. Another prompt moved that of")
    assert f"B, prompt “{own}”" in play.look.table()[0]
    page.get_by_role("button", name="Table", exact=True).click()
    compare.add.click()
    expect(compare.own_prompt(2)).to_have_value(own)
    compare.act("Take B", 1).click()
    expect(page.locator(".said")).to_have_text(own)


def test_an_own_prompt_stands_in_the_place_of_the_conversations(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.01))
    play.write("Who are you?", n=6)
    before = ["Who are you?", play.text()]
    play.write(PROMPT, n=6)
    compare = play.compare.open()
    compare.own_prompt(1).fill("Another one")
    compare.run()
    asked = [
        [message["content"] for message in request["messages"]]
        for request in play.reach.requests()[-2:]
    ]
    assert asked == [[*before, PROMPT], [*before, "Another one"]]
    why = "It answers another prompt than the conversation."
    expect(compare.act("Take B", 1)).to_have_attribute("title", why)
    expect(compare.act("Take A", 0)).to_be_enabled()


def test_columns_are_added_and_removed(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site())
    play.set(max_tokens=6)
    compare = play.compare.open(PROMPT)
    for n in (3, 4):
        compare.add.click()
        expect(compare.columns).to_have_count(n)
    expect(compare.add).to_be_disabled()
    compare.run()
    rows = play.look.table()
    assert len(rows) == 6
    assert list(rows[0]) == ["token", "A", "p A", "B", "p B", "C", "p C", "D", "p D", "same"]
    assert [row["D"] for row in play.look.csv()] == [row["D"] for row in rows]
    page.get_by_role("button", name="Table", exact=True).click()
    compare.act("Remove", 2).click()
    expect(compare.columns).to_have_count(3)
    assert until(page, lambda: compare.texts()[2], "the text of the last column")
