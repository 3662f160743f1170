"""The logit lens: what is said of ranks, and the guesses of a real run as the engine gives them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES, until
from gpu import Engine
from gpu.inspection.requests import LogitLens


@pytest.mark.quick
@pytest.mark.parametrize(
    ("ranks", "first", "settled", "says"),
    [
        ([40, 3, 0, 0], 2, 2, "is the top prediction from layer 1 on."),
        ([0, 0, 0, 0], 0, 0, "is the top prediction from the embedding on."),
        ([9, 0, 2, 0], 1, 3, "first after layer 0, then from layer 2 on."),
        ([9, 0, 2, 1], 1, None, "is the top prediction after layer 0, and 2nd at the end."),
        (
            [9, 4, 2, 4],
            None,
            None,
            "is never the top prediction: 3rd at best, after layer 1, and 5th",
        ),
        ([1, 4, 2, 4], None, None, "2nd at best, at the embedding, and 5th at the end."),
    ],
)
def test_when_a_token_is_the_top_guess(
    loaded: Page, ranks: list[int], first: int | None, settled: int | None, says: str
) -> None:
    found = loaded.evaluate(
        """async (ranks) => {
          const { whenTop, inWords } = await import("/static/js/look/lens/reading.js");
          return { ...whenTop(ranks), says: inWords(ranks, "“fox”") };
        }""",
        ranks,
    )
    assert (found["first"], found["settled"]) == (first, settled)
    assert says in found["says"]


@pytest.mark.parametrize("name", ["lens", "attention", "forward"])
def test_a_model_whose_weights_are_stored_otherwise_is_asked_again(
    page: Page, site: Callable[..., Site], name: str
) -> None:
    play = open_page(page, site())
    play.write(n=6)
    look = play.look.open(name)

    def n_asked() -> int:
        asked = [message for message in play.messages.sent if message["type"] == "inspect"]
        return len([one for one in asked if "position" in one["question"]])

    until(page, n_asked, "the first question")
    page.evaluate(TWO_FRAMES)
    expect(look.panel).not_to_have_attribute("aria-busy", "true")
    before = n_asked()
    play.load_as(dtype="q8")
    until(page, lambda: n_asked() > before, "the question to the other weights")


def test_what_was_asked_is_kept_within_a_bound(loaded: Page) -> None:
    kept = loaded.evaluate(
        """async () => {
          const { AnswerCache } = await import("/static/js/look/shared/answer-cache.js");
          const kept = new AnswerCache(100);
          const answer = (bytes) => ({ arrays: { a: { values: new Uint8Array(bytes) } } });
          kept.set("a", answer(40));
          kept.set("b", answer(40));
          kept.get("a");
          kept.set("c", answer(40));
          kept.set("c", answer(60));
          const some = ["a", "b", "c"].map((key) => kept.get(key)?.arrays.a.values.length ?? 0);
          kept.set("d", answer(500));
          return [...some, ...["a", "c", "d"].map((key) => !!kept.get(key))];
        }"""
    )
    assert kept == [40, 0, 60, False, False, True], "the newest stays even where it is too large"


# ---- a real run ------------------------------------------------------------------------------


def pin(page: Page, index: int) -> None:
    page.evaluate("async (i) => (await import('/static/js/view.js')).pin(i)", index)


@pytest.mark.quick
def test_the_guesses_are_those_of_the_engine(
    page: Page, bundled: Site, bundled_engine: Engine
) -> None:
    play = Playground(page, bundled).open()
    messages = play.messages
    play.set(max_tokens=40, seed=11)
    play.ask("Tell me a story about a fox who finds a lantern")
    play.wait_tokens(40)
    play.wait_done()
    tokens = messages.events("token")
    prompt = [token["id"] for token in messages.events("accepted")[0]["prompt"]]
    ids = prompt + [token["id"] for token in tokens]
    look = play.look.open("lens")
    # A written token was chosen after the one before it; of the prompt the next one is followed.
    for index, at in [
        (25, len(prompt) + 24),
        (0, len(prompt) - 1),
        (-1, len(prompt) - 1),
        (-4, -5),
    ]:
        at = at if at >= 0 else len(prompt) - 4
        pin(page, index)
        says = page.locator(".ln-summary")
        text = bundled_engine.tokenizer.piece(ids[at + 1]).strip() or "␣"
        expect(says).to_contain_text(f"“{text}”".replace("\n", "↵"))
        expect(page.locator("#look")).not_to_have_attribute("aria-busy", "true")
        answer = bundled_engine.inspect(LogitLens(ids[: at + 1], at, ids[at + 1])).result()
        rows = look.csv()
        assert len(rows) == bundled_engine.info.model.n_layers + 1
        for row, stage in zip(rows, reversed(range(len(rows))), strict=True):
            assert row["after"] == ("embed" if stage == 0 else f"layer {stage - 1}")
            for i, (id, share) in enumerate(
                zip(answer["ids"][stage], answer["probabilities"][stage], strict=True), start=1
            ):
                assert row[f"top {i}"] == bundled_engine.tokenizer.piece(int(id))
                assert np.float32(row[f"p {i}"]) == share
            assert np.float32(row["entropy (bits)"]) == answer["entropy"][stage]
            assert int(row["rank of chosen"]) == answer["rank"][stage] + 1
            assert np.float32(row["p of chosen"]) == answer["probability"][stage]
        if index >= 0:
            assert np.log(float(rows[0]["p of chosen"])) == pytest.approx(
                tokens[index]["logprob"], abs=1e-3
            )
            expect(look.source).to_contain_text("as in the run")


def test_the_chosen_token_is_marked_wherever_it_is_guessed(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    page.get_by_role("button", name="Greedy").click()
    play.set(max_tokens=12)
    play.ask("Tell me a story about a fox who finds a lantern")
    play.wait_tokens(12)
    play.wait_done()
    look = play.look.open("lens")
    last = page.locator(".ln-grid tbody tr").first
    for index in (2, 7, 11):
        pin(page, index)
        page.evaluate(TWO_FRAMES)
        word = page.locator("#tok-word").inner_text()
        expect(page.locator(".ln-summary")).to_contain_text(f": “{word}” is the top prediction")
        expect(last.locator("td").first).to_have_class(re.compile(r"\bhit\b"))
        for row in page.locator(".ln-grid tbody tr").all():
            assert row.locator(".hit").count() <= 1
        assert float(last.locator("td").first.locator("small").inner_text()) > 0
    assert look.csv()[0]["rank of chosen"] == "1", "greedy takes the top guess"


# ---- driving it ------------------------------------------------------------------------------


def fake_run(page: Page, here: Site, n: int = 20) -> tuple[Playground, LookPanel]:
    play = open_page(page, here)
    play.set(max_tokens=n, seed=3)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    look = play.look.open("lens")
    expect(page.locator(".ln-grid tbody tr")).to_have_count(here.options.n_layers + 1)
    return play, look


def test_layers_and_tokens_by_keyboard(page: Page, site: Callable[..., Site]) -> None:
    play, _ = fake_run(page, site())
    rows = page.locator(".ln-grid tbody tr")
    stops = rows.evaluate_all("(rows) => rows.map((row) => row.tabIndex)")
    assert sorted(stops) == [-1] * 8 + [0], "one stop of the Tab key"
    hot = page.locator(".ln-grid tr.hot")
    expect(hot.locator("th")).to_have_text("layer 6")
    hot.focus()
    page.keyboard.press("ArrowUp")
    expect(hot.locator("th")).to_have_text("layer 7")
    expect(page.locator("#gutter .on")).to_have_text("layer 7")
    for _ in range(8):
        page.keyboard.press("ArrowDown")
    expect(hot.locator("th")).to_have_text("embed")
    expect(hot).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(play.core).to_have_attribute("aria-valuenow", "19")
    expect(page.locator(".ln-summary")).to_contain_text(page.locator("#tok-word").inner_text())
    page.keyboard.press("ArrowUp")
    expect(hot.locator("th")).to_have_text("layer 0")


def test_pointing_at_a_layer_lights_it_in_the_core(page: Page, site: Callable[..., Site]) -> None:
    fake_run(page, site())
    page.locator('.ln-grid tr[data-stage="3"]').hover()
    expect(page.locator("#gutter .on")).to_have_text("layer 2")
    expect(page.locator("#lrows tr.hot")).to_have_attribute("data-layer", "2")
    expect(page.locator(".ln-grid tr.hot")).to_have_attribute("data-stage", "3")
    page.mouse.move(5, 600)
    expect(page.locator("#gutter .on")).to_have_text("layer 6")


def test_the_line_stands_on_the_rows_of_the_table(page: Page, site: Callable[..., Site]) -> None:
    """Around the middle of every row the canvas has the colour of the focus: a dot."""
    fake_run(page, site())
    found = page.evaluate(
        """() => {
          const canvas = document.querySelector(".ln-rank");
          const box = canvas.getBoundingClientRect();
          const ratio = canvas.width / box.width;
          const context = canvas.getContext("2d");
          const probe = document.body.appendChild(document.createElement("i"));
          probe.style.color = "var(--lamp)";
          const lamp = getComputedStyle(probe).color.match(/\\d+/g).slice(0, 3).map(Number).join();
          probe.remove();
          const { data, width } = context.getImageData(0, 0, canvas.width, canvas.height);
          const rows = [...document.querySelectorAll(".ln-grid tbody tr")];
          return rows.map((row) => {
            const { top, height } = row.getBoundingClientRect();
            const y = Math.round((top + height / 2 - box.top) * ratio);
            let seen = 0;
            for (let i = 4 * width * (y - 4); i < 4 * width * (y + 5); i += 4)
              seen += [data[i], data[i + 1], data[i + 2]].join() === lamp;
            return seen;
          });
        }"""
    )
    assert len(found) == 9
    assert min(found) > 3, "every row has its dot"


def test_the_names_of_columns_stay_over_many_layers(page: Page, site: Callable[..., Site]) -> None:
    fake_run(page, site(n_layers=30))
    plate = page.locator(".ln-plate")
    assert plate.evaluate("(n) => n.scrollHeight - n.clientHeight") > 200, "it scrolls"
    names = [page.locator(".ln-grid thead th").nth(1), page.get_by_text("rank of chosen")]
    before = [name.bounding_box() for name in names]
    plate.evaluate("(n) => { n.scrollTop = n.scrollHeight }")
    assert [name.bounding_box() for name in names] == before
    for name in names:
        top = name.evaluate(
            "(n) => { const b = n.getBoundingClientRect();"
            " return document.elementFromPoint(b.left + 15, b.top + 8) === n; }"
        )
        assert top, "nothing lies over it"


def test_before_anything_follows_there_is_nothing_to_see(
    page: Page, own_site: Callable[..., Site]
) -> None:
    play = open_page(page, own_site(delay=2.0))
    play.set(max_tokens=3)
    look = play.look.open("lens")
    expect(look.message).to_contain_text("No run yet")
    play.prompt.evaluate("(box) => { box.value = 'Tell me'; }")
    page.evaluate("() => document.getElementById('composer').requestSubmit()")
    expect(play.core).to_have_attribute("aria-valuemin", re.compile("^-"))
    pin(page, -1)
    expect(look.message).to_have_text("No token follows this one.")
    expect(look.message).to_be_hidden()
    expect(page.locator(".ln-summary")).to_contain_text("After “")


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_axe_finds_nothing_in_the_lens(page: Page, site: Callable[..., Site], theme: str) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    fake_run(page, site())
    assert violations(page) == []


@pytest.mark.parametrize("width", [360, 768])
def test_the_lens_fits_small_windows(page: Page, site: Callable[..., Site], width: int) -> None:
    play, _ = fake_run(page, site())
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(100)
    assert play.overflow() <= 0
    plate = page.locator(".ln-plate")
    assert plate.evaluate("(n) => n.scrollWidth - n.clientWidth") <= 0
    table = page.locator(".ln-grid").bounding_box()
    rank = page.locator(".ln-rank").bounding_box()
    assert table is not None
    assert rank is not None
    assert table["x"] + table["width"] <= rank["x"] + 1
    assert rank["width"] >= 100


# ---- a whole text ----------------------------------------------------------------------------


@pytest.mark.quick
def test_the_ranks_of_a_whole_text_are_those_of_the_engine(
    page: Page, bundled: Site, bundled_engine: Engine
) -> None:
    play = Playground(page, bundled).open()
    play.set(max_tokens=6, seed=11)
    play.ask("Tell me a story")
    play.wait_tokens(6)
    play.wait_done()
    messages = play.messages
    prompt = [token["id"] for token in messages.events("accepted")[0]["prompt"]]
    ids = prompt + [token["id"] for token in messages.events("token")]
    look = play.look.open("lens")
    look.panel.get_by_role("radio", name="Whole text").check()
    expect(look.panel.locator(".ln-says")).to_contain_text(f"Measure {len(ids) - 1} tokens")
    assert look.csv() == [], "nothing is computed unasked"
    look.panel.locator(".ln-text-bar button").click()
    expect(look.panel.locator(".ln-says")).to_contain_text(f"of {len(ids) - 1} are the top")
    rows = look.csv()
    assert [int(row["id"]) for row in rows] == ids[1:]
    for at, row in enumerate(rows):
        want = bundled_engine.inspect(LogitLens(ids[: at + 1], at, ids[at + 1])).result()["rank"]
        stages = ["embed", *(f"layer {i}" for i in range(len(want) - 1))]
        assert [int(row[f"rank at {stage}"]) for stage in stages] == [int(r) + 1 for r in want]
        top = [stage for stage, rank in zip(stages, want, strict=True) if rank == 0]
        assert row["first on top at"] == (top[0] if top else "")
        assert (row["on top from"] != "") == (want[-1] == 0)
        if row["on top from"]:
            assert not want[stages.index(row["on top from"]) :].any()
    expect(look.panel.locator(".ln-text-bar button")).to_be_disabled()
    assert violations(page) == []


SHOW_FIRST = """async () => {
  const { state } = await import("/static/js/state.js");
  const { showAnswer } = await import("/static/js/view.js");
  showAnswer(state.turns.find(({ answers }) => answers).answers[0]);
}"""


def test_the_measuring_ends_when_another_answer_is_looked_at(
    page: Page, site: Callable[..., Site]
) -> None:
    """An answer of the engine is held until the other text is shown."""
    asked: list[list[int]] = []
    held: list[str | bytes] = []
    lines: list[WebSocketRoute] = []
    holds = False

    def on_socket(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def up(message: str | bytes) -> None:
            if isinstance(message, str) and '"logit_lens"' in message:
                asked.append(json.loads(message)["question"]["ids"])
            server.send(message)

        def down(message: str | bytes) -> None:
            if holds and isinstance(message, bytes):
                held.append(message)
            else:
                route.send(message)

        route.on_message(up)
        server.on_message(down)
        lines.append(route)

    page.route_web_socket("**/ws", on_socket)
    play = open_page(page, site())
    play.write(n=6)
    play.write("And then?", n=8)
    look = play.look.open("lens")
    look.panel.get_by_role("radio", name="Whole text").check()
    button = look.panel.locator(".ln-text-bar button")
    expect(button).to_have_text("Measure")
    asked.clear()
    holds = True
    button.click()
    expect(button).to_have_text("Stop")
    until(page, lambda: held, "the first answer")
    page.evaluate(SHOW_FIRST)
    expect(button).to_have_text("Measure")
    expect(button).to_be_enabled()
    holds = False
    lines[-1].send(held[0])
    button.click()
    says = look.panel.locator(".ln-says")
    expect(says).to_contain_text("are the top prediction at the end")
    first, *others = asked
    assert len(first) == 1
    assert others == [others[-1][: i + 1] for i in range(len(others))], "all of the other text"
