"""The sampling waterfall: the engine's numbers, the run's draw, previews that change nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.bundled import ask_engine
from e2e.chat.answer_options import AnswerOptions
from e2e.look.panel import LookPanel
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES, until
from gpu.inspection.requests import Answer, Waterfall
from gpu.sampling_params import SamplingParams

ASK = "Tell me a story about a fox who finds a lantern"
SEED = 2**64 - 7
"""Past 53 bits: a page that made it a number would ask for another draw."""
SETTINGS = {
    "temperature": 0.9,
    "top_k": 200,
    "top_p": 0.95,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.4,
    "presence_penalty": 0.3,
}
N = 24
TOP = 60
CUTS = ("", "top-k", "top-p", "min-p")
STAGES = ("raw logits", "penalties", "temperature", "top-k", "top-p", "min-p", "watermark")


@pytest.fixture
def run(page: Page, bundled: Site) -> tuple[Playground, LookPanel, MessageLog]:
    """A page on which the bundled model wrote `N` tokens, and all that came over its line."""
    play = Playground(page, bundled).open()
    messages = play.messages
    play.set(**SETTINGS, seed=SEED, max_tokens=N)
    play.ask(ASK)
    play.wait_tokens(10)
    play.wait_done()
    return play, play.look, messages


def look_at(play: Playground, look: LookPanel, index: int) -> None:
    """Open the instrument at a token, and wait until it shows it."""
    look.open("filters")
    play.page.evaluate(
        "async (index) => (await import('/static/js/view.js')).pin(index)",
        index,
    )
    expect(look.panel.locator(".wf-summary")).to_be_visible()
    settle(look)


def settle(look: LookPanel) -> None:
    """Wait until nothing is asked any more: two frames show what changed and what came."""
    look.page.evaluate(TWO_FRAMES)
    expect(look.panel).not_to_have_attribute("aria-busy", "true")


def asked(bundled: Site, messages: MessageLog, index: int, **changes: Any) -> Answer:
    """Ask the engine about a token of the run."""
    prompt = [token["id"] for token in messages.events("accepted")[-1]["prompt"]]
    written = [token["id"] for token in messages.events("token")]
    ids = prompt + written[:index]
    params = SamplingParams(**{**SETTINGS, **changes}, seed=SEED)
    return ask_engine(bundled, Waterfall(ids, len(ids) - 1, params, index, TOP))


def compare(rows: list[dict[str, str]], answer: Answer) -> None:
    """Rows of the file against the engine's answer, every number of it."""
    by_what = {row["what"]: row for row in rows if row["id"] == ""}
    for number, stage in enumerate(answer.info["stages"]):
        name = STAGES[number]
        assert int(by_what["tokens left"][name]) == stage["n_kept"]
        assert float(by_what["mass left"][name]) == stage["kept"]
        assert float(by_what["mass cut"][name]) == stage["removed"]
        assert float(by_what["entropy, bits"][name]) == stage["entropy"]
    tokens = {int(row["id"]): row for row in rows if row["id"]}
    assert list(tokens) == answer["ids"].tolist(), "as many, in the same order"
    columns = {"raw logits": "raw", "penalties": "penalised", "temperature": "tempered"}
    columns |= {
        "watermark": "marked",
        "drawn from": "after",
        "from": "low",
        "to": "high",
        "logit": "logit",
    }
    for at, row in enumerate(tokens.values()):
        for column, name in columns.items():
            assert float(row[column]) == pytest.approx(float(answer[name][at]), rel=1e-12), column
        assert row["cut by"] == CUTS[answer["cut"][at]]


def sums(rows: list[dict[str, str]]) -> None:
    """Assert that kept and cut mass add up to the whole, by stages and by tokens."""
    by_what = {row["what"]: row for row in rows if row["id"] == "" and "other" not in row["what"]}
    left, cut = by_what["mass left"], by_what["mass cut"]
    before = 1.0
    for name in STAGES:
        assert float(left[name]) + float(cut[name]) == pytest.approx(before, abs=1e-9)
        before = float(left[name])
    bands = [row for row in rows if row["id"] or "other tokens" in row["what"]]
    for name in STAGES:
        shares = sum(float(row[name]) for row in bands)
        assert shares == pytest.approx(float(left[name]), abs=1e-5), name
    assert sum(float(row["drawn from"]) for row in bands) == pytest.approx(1, abs=1e-5)


def cells(look: LookPanel, row: int) -> list[str]:
    cell: Locator = look.panel.locator(".wf-row").nth(row).get_by_role("cell")
    return cell.all_inner_texts()


@pytest.mark.quick
def test_the_numbers_are_the_engines_and_the_draw_is_the_runs(
    bundled: Site, run: tuple[Playground, LookPanel, MessageLog]
) -> None:
    play, look, messages = run
    events = messages.events("token")
    unsure = max(range(len(events)), key=lambda i: events[i]["n_kept"])
    for index in (0, unsure, len(events) - 1):
        look_at(play, look, index)
        answer = asked(bundled, messages, index)
        rows = look.csv()
        assert {row["of"] for row in rows} == {"run"}
        compare(rows, answer)
        sums(rows)
        assert answer.info["chosen"] == events[index]["id"]
        expect(look.source).to_contain_text("the same random number and token as in the run")
        assert cells(look, 0) == [f"{s['n_kept']:,}" for s in answer.info["stages"]] + ["1"]
        for text, stage in zip(cells(look, 2), answer.info["stages"], strict=False):
            assert float(text) == pytest.approx(stage["entropy"], abs=0.005)
        expect(look.panel.get_by_role("columnheader").last).to_contain_text(
            f"{events[index]['draw']:.3f}"
        )
        drawn = next(row for row in rows if row["id"] == str(events[index]["id"]))
        assert float(drawn["from"]) <= events[index]["draw"] < float(drawn["to"])


def test_of_the_heads_the_draw_alone_has_the_colour_of_the_focus(
    run: tuple[Playground, LookPanel, MessageLog],
) -> None:
    play, look, _ = run
    look_at(play, look, 5)
    heads = look.panel.get_by_role("columnheader").locator("b")
    focus = look.panel.locator(".wf-row.picked .wf-of").evaluate("(n) => getComputedStyle(n).color")
    colours = heads.evaluate_all("(all) => all.map((node) => getComputedStyle(node).color)")
    assert [colour == focus for colour in colours] == [False] * len(STAGES) + [True]


def test_the_draws_by_which_a_limit_ends_json_are_the_runs(page: Page, bundled: Site) -> None:
    """A string is closed before its end, so that the text is whole when no token is left."""
    play = Playground(page, bundled).open()
    play.set(max_tokens=30, seed=2, temperature=1.0)
    text = {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3}
    AnswerOptions(play).format("JSON schema", json.dumps(text))
    play.ask(ASK)
    play.wait_tokens(1)
    play.wait_done()
    json.loads(play.text())
    messages = play.messages
    events = messages.events("token")
    look = play.look.open("filters")
    closed = min(range(5, len(events)), key=lambda i: events[i]["allowed"]["n"])
    for index in (closed, 3):
        look_at(play, look, index)
        expect(look.source).to_contain_text("the same random number and token as in the run")
        n = f"{events[index]['allowed']['n']:,}"
        expect(look.panel.locator(".wf-summary")).to_contain_text(f"The grammar allows {n} of ")


def test_the_penalty_shows_what_it_pressed_down(
    bundled: Site, run: tuple[Playground, LookPanel, MessageLog]
) -> None:
    play, look, messages = run
    index = len(messages.events("token")) - 1
    look_at(play, look, index)
    answer = asked(bundled, messages, index)
    rows = {int(row["id"]): row for row in look.csv() if row["id"]}
    ids, seen = answer["ids"].tolist(), answer["seen"].tolist()
    fresh = next(id for id, was in zip(ids, seen, strict=True) if not was)
    pressed = [id for id, was in zip(ids, seen, strict=True) if was]
    assert pressed, "nothing among the likeliest was said before"

    def odds(id: int, column: str) -> float:
        return float(rows[id][column]) / float(rows[fresh][column])

    for id in pressed:
        assert odds(id, "penalties") < odds(id, "raw logits")


def test_a_slider_previews_and_changes_nothing_of_the_run(
    bundled: Site, run: tuple[Playground, LookPanel, MessageLog]
) -> None:
    play, look, messages = run
    events = messages.events("token")
    index = max(range(len(events)), key=lambda i: events[i]["n_kept"])
    look_at(play, look, index)
    before, text, sent = look.csv(), play.text(), len(messages.sent)
    say = look.panel.locator(".wf-summary")
    expect(say).to_contain_text("with the run's settings")
    play.slide("temperature", 1.5)
    play.slide("top_k", 7)
    expect(say).to_contain_text(
        "Preview with temperature 1.50 and top-k 7; drawn with 0.90 and 200"
    )
    settle(look)
    expect(look.source).to_contain_text("The outline is the run.")
    rows = look.csv()
    preview = [row for row in rows if row["of"] == "preview"]
    answer = asked(bundled, messages, index, temperature=1.5, top_k=7)
    compare(preview, answer)
    sums(preview)
    assert [row for row in rows if row["of"] == "run"] == before
    assert answer.info["draw"] == events[index]["draw"], "the same random number"
    expect(look.panel.locator(".wf-heads .changed")).to_have_count(2)
    play.slide("temperature", 0.9)
    play.set(top_k=200)
    expect(say).to_contain_text("with the run's settings")
    assert look.csv() == before
    assert play.text() == text
    assert {message["type"] for message in messages.sent[sent:]} == {"inspect"}
    assert len(messages.events("token")) == len(events)


def test_greedy_is_told_as_such(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    messages = play.messages
    page.get_by_role("button", name="Greedy").click()
    play.set(max_tokens=6)
    play.ask(ASK)
    play.wait_tokens(6)
    play.wait_done()
    look = play.look
    look_at(play, look, 3)
    expect(look.panel.locator(".wf-summary")).to_contain_text(
        "greedy takes the most likely of 4,096"
    )
    expect(look.panel.get_by_role("columnheader").last).to_contain_text("none")
    chosen = next(row for row in look.csv() if row["id"] == str(messages.events("token")[3]["id"]))
    assert float(chosen["drawn from"]) == 1


# ---- with an engine that answers at once --------------------------------------------------------


def wrote(
    page: Page, here: Site, n: int = 20, **settings: Any
) -> tuple[Playground, LookPanel, MessageLog]:
    play = Playground(page, here).open()
    messages = play.messages
    play.set(max_tokens=n, seed=5, **settings)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play, play.look, messages


def inspections(messages: MessageLog) -> list[dict[str, Any]]:
    return [message["question"] for message in messages.sent if message["type"] == "inspect"]


@pytest.mark.slow
def test_a_token_is_asked_with_the_settings_it_was_drawn_with(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site(delay=0.1)).open()
    messages = play.messages
    play.set(temperature="0.5", max_tokens=40, seed=5)
    play.ask()
    play.wait_tokens(8)
    play.slide("temperature", 1.2)
    play.wait_done()
    change = messages.events("updated")[-1]["index"]
    look = play.look
    for index, temperature in ((change - 1, 0.5), (change, 1.2)):
        look_at(play, look, index)
        question = next(q for q in inspections(messages) if q["index"] == index)
        assert question["params"]["temperature"] == temperature
        assert question["params"]["seed"] == 5
        assert question["position"] == len(question["ids"]) - 1
    assert "Preview" not in look.panel.locator(".wf-summary").inner_text()
    look_at(play, look, change - 1)
    expect(look.panel.locator(".wf-summary")).to_contain_text(
        "Preview with temperature 1.20; drawn with 0.50"
    )


def test_only_an_open_panel_asks_and_an_answer_is_kept(
    page: Page, site: Callable[..., Site]
) -> None:
    play, look, messages = wrote(page, site())
    assert inspections(messages) == []
    look_at(play, look, 3)
    look_at(play, look, 4)
    known = len(inspections(messages))
    assert known == 3, "the newest, and the two"
    look_at(play, look, 3)
    look_at(play, look, 4)
    assert len(inspections(messages)) == known
    page.keyboard.press("Escape")
    expect(look.panel).to_be_hidden()
    play.core.focus()
    page.keyboard.press("ArrowLeft")
    play.slide("temperature", 1.7)
    settle(look)
    assert len(inspections(messages)) == known


@pytest.mark.slow
def test_the_newest_token_is_followed_while_the_run_writes(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site(delay=0.05)).open()
    messages = play.messages
    play.set(max_tokens=150, seed=5)
    play.ask()
    play.wait_tokens(5)
    look = play.look
    page.evaluate("() => { location.hash = 'look=filters' }")
    say = look.panel.locator(".wf-summary")
    expect(say).to_contain_text("with the run's settings")
    first = say.inner_text()
    until(page, lambda: say.inner_text() != first, "the next token")
    play.wait_done()
    expect(say).to_contain_text("Token 150")
    until(
        page, lambda: inspections(messages)[-1]["index"] == 149, "a question about the last token"
    )
    indexes = [question["index"] for question in inspections(messages)]
    assert indexes == sorted(indexes)
    assert 10 < len(indexes) < 100, "not every token is asked about"
    assert [event["index"] for event in messages.events("token")] == list(range(150))


def test_the_keyboard_moves_among_tokens_and_stages(page: Page, site: Callable[..., Site]) -> None:
    play, look, _ = wrote(page, site())
    look_at(play, look, 7)
    picture = look.panel.get_by_role("slider", name="Token in the waterfall")
    picture.focus()
    page.keyboard.press("Home")
    expect(picture).to_have_attribute("aria-valuenow", "1")
    likeliest = picture.get_attribute("aria-valuetext") or ""
    assert re.match(r".+, [\d.]+ per cent of the raw logits, ", likeliest)
    name = look.panel.locator(".wf-row").last.get_by_role("rowheader")
    expect(name).to_have_text(likeliest.split(",")[0])
    page.keyboard.press("ArrowDown")
    expect(picture).to_have_attribute("aria-valuenow", "2")
    page.keyboard.press("End")
    assert "cut by" in (picture.get_attribute("aria-valuetext") or "")
    assert "cut" in cells(look, 3)
    page.keyboard.press("ArrowLeft")
    expect(play.core).to_have_attribute("aria-valuenow", "7")
    expect(look.panel.locator(".wf-summary")).to_contain_text("Token 7")


def test_pointing_tells_a_tokens_shares(page: Page, site: Callable[..., Site]) -> None:
    play, look, _ = wrote(page, site())
    look_at(play, look, 7)
    picture = look.panel.locator(".wf-flow")
    box = picture.bounding_box()
    assert box is not None
    top = look.csv()[5]
    row = look.panel.locator(".wf-row").last
    before = row.inner_text()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 12)
    expect(row.get_by_role("cell").first).to_have_text(f"{100 * float(top['raw logits']):.1f}")
    page.mouse.move(5, 5)
    expect(row).to_have_text(before, use_inner_text=True)


def test_a_given_token_was_not_chosen(page: Page, site: Callable[..., Site]) -> None:
    play, look, messages = wrote(page, site())
    look.open("filters")
    settle(look)
    n = len(inspections(messages))
    look.page.evaluate("async () => (await import('/static/js/view.js')).pin(-3)")
    expect(look.message).to_contain_text("part of the prompt, not chosen")
    expect(look.panel.get_by_role("button", name="CSV")).to_be_disabled()
    assert len(inspections(messages)) == n
    assert play.tokens.count() == 20


def test_the_sliders_stay_in_reach_beside_the_picture(
    page: Page, site: Callable[..., Site]
) -> None:
    play, look, _ = wrote(page, site())
    look_at(play, look, 7)
    slider = page.locator("#s-temperature")
    for width in (1440, 900, 768):
        page.set_viewport_size({"width": width, "height": 900})
        expect(slider).to_be_visible()
        panel, sampling = look.panel.bounding_box(), page.locator(".sampling").bounding_box()
        assert panel is not None
        assert sampling is not None
        assert panel["x"] + panel["width"] <= sampling["x"] + 1
        assert play.overflow() <= 0
    page.set_viewport_size({"width": 360, "height": 780})
    page.locator("#tabs").get_by_role("button", name="Sampling").click()
    expect(slider).to_be_in_viewport()
    expect(look.panel.locator(".wf-flow")).to_be_in_viewport(ratio=0.99)
    look.open("cache")
    page.set_viewport_size({"width": 1440, "height": 900})
    expect(slider).not_to_be_visible()


FLOW = """async ([question, top]) => {
  const { inspect } = await import("/static/js/net/inspect.js");
  const { flowOf } = await import("/static/js/look/filters/flow.js");
  const answer = await inspect(question);
  const { bands, stages } = flowOf(answer, top);
  return { info: answer.info, stages, bands };
}"""


@pytest.mark.parametrize("top", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 100))])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 1.7},
        {"temperature": 0.05},
        {"top_k": 1},
        {"temperature": 1.4, "top_k": 50, "top_p": 0.8, "min_p": 0.1},
        {"repetition_penalty": 1.5, "top_p": 0.3},
        {"temperature": 1.4, "top_p": 0.8, "watermark_bias": 3.0},
    ],
)
def test_bands_fill_the_columns_whatever_is_shown_of_them(
    page: Page, play: Callable[..., Playground], settings: dict[str, float], top: int
) -> None:
    """Also when the drawn token is none of the likeliest (`top` 1): it stands at its place."""
    play()
    for index in range(12):
        question = {
            "kind": "waterfall",
            "ids": [0, 262, 263, 264],
            "position": 3,
            "params": {**settings, "seed": 3},
            "index": index,
            "top": top,
        }
        found = page.evaluate(FLOW, [question, top])
        bands, info = found["bands"], found["info"]
        kept = [stage["kept"] for stage in found["stages"]]
        filled = [sum(band["sizes"][column] for band in bands) for column in range(8)]
        assert filled[:3] == pytest.approx([1, 1, 1], abs=1e-5)
        assert filled[3:7] == pytest.approx([1, kept[3], kept[4], kept[5]], abs=1e-5)
        assert filled[7] == pytest.approx(1, abs=1e-5)
        chosen = next(band for band in bands if band["id"] == info["chosen"])
        assert chosen["tops"][7] == pytest.approx(chosen["low"], abs=1e-5)
        start = chosen["tops"][7]
        assert start - 1e-5 <= info["draw_at"] <= start + chosen["sizes"][7] + 1e-5
        counts = [band["count"] for band in bands]
        if None not in counts:
            assert sum(counts) == found["stages"][0]["n_kept"]
