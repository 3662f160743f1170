"""The tour chooses its examples well from made-up numbers, and places its card well."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

pytestmark = pytest.mark.quick

Call = Callable[..., Any]


# ---- the token -------------------------------------------------------------------------------


def token(text: str, shares: list[float] | None = None, **more: Any) -> dict[str, Any]:
    """A token that was drawn, with candidates of these shares; it is the likeliest of them unless
    `rank` says otherwise."""
    shares = shares or [0.99, 0.01]
    rank = more.pop("rank", 0)
    candidates = [{"id": i, "before": share} for i, share in enumerate(shares)]
    return {"id": rank, "text": text, "candidates": candidates, "stats": {}, **more}


OPEN = [0.4, 0.3, 0.2, 0.1]
"""A distribution with rivals."""


def story(**at: dict[str, Any]) -> list[dict[str, Any]]:
    """Twelve tokens without rivals; `t5=token(…)` puts another one at 5."""
    words = ["There", "was", "a", "fox", "who", "found", "it", "in", "the", "cold", ",", "dark"]
    tokens = [token(f" {word}") for word in words]
    for name, other in at.items():
        tokens[int(name[1:])] = other
    return tokens


def test_a_word_with_rivals_is_followed(call: Call) -> None:
    assert call("tour/choose", "chooseToken", story(t5=token(" lantern", OPEN))) == 5


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(token(" lantern", [0.97, 0.03]), id="without rivals"),
        pytest.param(token(" of", OPEN), id="short"),
        pytest.param(token(",", OPEN), id="no word"),
        pytest.param(token(" lantern", [0.5, 0.3, 0.17, 0.03], rank=3), id="from the tail"),
        pytest.param(token(" lantern", OPEN, rank=1), id="not the likeliest"),
        pytest.param(token(" lantern", OPEN, stats=None), id="not measured"),
    ],
)
def test_a_better_word_is_preferred(call: Call, other: dict[str, Any]) -> None:
    """Whichever comes first."""
    good = token(" village", OPEN)
    assert call("tour/choose", "chooseToken", story(t5=other, t8=good)) == 8
    assert call("tour/choose", "chooseToken", story(t5=good, t8=other)) == 5


def test_the_first_token_is_never_followed(call: Call) -> None:
    assert call("tour/choose", "chooseToken", story(t0=token(" lantern", OPEN))) != 0
    assert call("tour/choose", "chooseToken", [token("A", OPEN), token(".")]) == 1
    assert call("tour/choose", "chooseToken", [token("A", OPEN)]) is None
    assert call("tour/choose", "chooseToken", []) is None


def test_a_piece_of_a_word_is_not_a_word(call: Call) -> None:
    for t5, t6 in [(" lant", "ern"), (" a", "lantern")]:
        tokens = story(t5=token(t5, OPEN), t6=token(t6, OPEN), t9=token(" village", OPEN))
        assert call("tour/choose", "chooseToken", tokens) == 9


def test_a_word_written_again_and_again_is_less_worth(call: Call) -> None:
    again = {f"t{i}": token(" lantern", OPEN) for i in (4, 5, 6)}
    assert call("tour/choose", "chooseToken", story(**again, t9=token(" village", OPEN))) == 9


def test_words_of_other_scripts_are_words(call: Call) -> None:
    assert call("tour/choose", "chooseToken", story(t5=token(" фонарь", OPEN))) == 5


def test_the_text_waits_where_a_slider_has_an_effect(call: Call) -> None:
    """Before a token with rivals: of one that is certain no slider moves the candidates."""
    tokens = story(t5=token(" lantern", OPEN), t9=token(" village", OPEN))
    assert call("tour/choose", "chooseWait", tokens, 4) == 4
    assert call("tour/choose", "chooseWait", tokens, 5) == 8
    closest = story(t9=token(" village", [0.9, 0.1]))
    assert call("tour/choose", "chooseWait", closest, 5) == 8
    assert call("tour/choose", "chooseWait", tokens, 11) == 11
    assert call("tour/choose", "chooseWait", story(t11=token("A", OPEN, segment=1)), 10) == 10


# ---- heads and layers ------------------------------------------------------------------------

# Typed arrays do not travel as arguments.
WEIGHTS = """async ([name, weights]) => {
  const choose = await import("/static/js/tour/choose.js");
  const shape = [weights.length, weights[0].length, weights[0][0].length];
  return choose[name]({ shape, values: new Float32Array(weights.flat(2)) });
}"""


def test_the_hardest_look_is_past_the_first_and_the_nearest(loaded: Page) -> None:
    weights = np.full((3, 2, 9), 0.01)
    weights[0, 1, 0] = 0.95  # a sink
    weights[1, 0, 7] = 0.94  # the token before
    weights[2, 0, 8] = 0.93  # itself
    weights[2, 1, 4] = 0.6
    found = loaded.evaluate(WEIGHTS, ["hardestLook", weights.tolist()])
    assert found == {"layer": 2, "head": 1, "at": 4, "weight": pytest.approx(0.6)}


def test_a_context_too_short_to_look_past_is_looked_at_whole(loaded: Page) -> None:
    found = loaded.evaluate(WEIGHTS, ["hardestLook", [[[0.2, 0.8]]]])
    assert found == {"layer": 0, "head": 0, "at": 1, "weight": pytest.approx(0.8)}


def scores(**places: list[float]) -> dict[str, Any]:
    """Scores of four heads as `meanScores` gives them; an even share is 2 %."""
    names = ("first", "previous", "copy", "self")
    return {
        **{name: places.get(name, [0.02] * 4) for name in names},
        "even": dict.fromkeys(names, 0.02),
    }


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({"previous": [0.1, 0.9, 0.2, 0.4]}, ("previous", 0, 1, 0.9, True)),
        ({"copy": [0.1, 0.1, 0.1, 0.5]}, ("copy", 1, 1, 0.5, True)),
        ({"first": [0.99, 0, 0, 0], "copy": [0, 0, 0.3, 0]}, ("copy", 1, 0, 0.3, True)),
        ({"first": [0.5, 0.7, 0, 0]}, ("first", 0, 1, 0.7, True)),
        ({"self": [0.9, 0, 0, 0], "previous": [0, 0, 0.2, 0]}, ("previous", 1, 0, 0.2, False)),
    ],
    ids=["previous", "copy", "a sink comes last", "a sink if nothing else", "none is named"],
)
def test_a_habit(call: Call, places: dict[str, list[float]], expected: tuple[Any, ...]) -> None:
    found = call("tour/choose", "habitOf", scores(**places), 2, 2)
    names = ("place", "layer", "head", "score", "named")
    assert found == dict(zip(names, expected, strict=True))


def test_a_token_alone_shows_no_habit(call: Call) -> None:
    nowhere: dict[str, Any] = {**dict.fromkeys(("first", "previous", "copy", "self")), "even": {}}
    assert call("tour/choose", "habitOf", nowhere, 2, 2) is None


def test_the_largest_update_is_beside_the_stream(call: Call) -> None:
    layers = [{"mlp": 5, "residual": 10}, {"mlp": 80, "residual": 400}, {"mlp": 9, "residual": 12}]
    assert call("tour/choose", "largestMlp", layers) == {"layer": 2, "ratio": 0.75}
    assert call("tour/choose", "largestMlp", [{"mlp": 0, "residual": 0}]) == {
        "layer": 0,
        "ratio": 0,
    }


def test_what_limits_a_step(call: Call) -> None:
    device = {"bytes_per_s": 10e9, "flops_per_s": 80e9}
    moving = call("tour/engine", "boundOf", {"n_bytes": 20e6, "flops": 40e6}, device)
    assert moving == {"own": 2, "ridge": 8, "memory": True, "floor": pytest.approx(2)}
    computing = call("tour/engine", "boundOf", {"n_bytes": 20e6, "flops": 400e6}, device)
    assert computing == {"own": 20, "ridge": 8, "memory": False, "floor": pytest.approx(5)}


def test_a_step_faster_than_its_limit_is_no_speed(call: Call) -> None:
    device, plan = {"bytes_per_s": 10e9, "flops_per_s": 80e9}, {"n_bytes": 20e6, "flops": 40e6}
    assert "reached" in str(call("tour/engine", "pace", plan, device, 1.95))
    found = str(call("tour/engine", "pace", plan, device, 1.8))
    assert "faster than that limit" in found
    assert "a fault of the measurement" in found
    assert "reached" not in found


# ---- the card --------------------------------------------------------------------------------

WINDOW = {"left": 0, "top": 0, "right": 1000, "bottom": 800}
SIZE = [300, 200]


def box(left: float, top: float, width: float, height: float) -> dict[str, float]:
    return {"left": left, "top": top, "right": left + width, "bottom": top + height}


def covered(at: dict[str, float], other: dict[str, float]) -> bool:
    card = box(at["left"], at["top"], *SIZE)
    apart = (
        card["right"] <= other["left"]
        or other["right"] <= card["left"]
        or card["bottom"] <= other["top"]
        or other["bottom"] <= card["top"]
    )
    return not apart


def place(call: Call, marks: list[Any], keep: list[Any] | None = None, home: Any = None) -> Any:
    where = {"room": WINDOW, "size": SIZE, "marks": marks, "keep": keep or [], "home": home}
    at = call("tour/place", "placeOf", where)
    assert at["left"] >= 0
    assert at["left"] + SIZE[0] <= WINDOW["right"]
    assert at["top"] >= 0
    assert at["top"] + SIZE[1] <= WINDOW["bottom"]
    return at


def test_the_card_never_covers_what_it_speaks_about(call: Call) -> None:
    rng = np.random.default_rng(2)
    for _ in range(40):
        width, height = (float(v) for v in rng.uniform(10, [690, 590]))
        x, y = (float(v) for v in rng.uniform(0, [1000 - width, 800 - height]))
        room = max(x, 1000 - x - width) >= 324 or max(y, 800 - y - height) >= 224
        mark = box(x, y, width, height)
        assert not room or not covered(place(call, [mark]), mark), mark


def test_the_card_stays_at_home_while_it_may(call: Call) -> None:
    home = box(650, 50, 350, 300)
    corner = {"left": 662, "top": 62}
    assert place(call, [box(100, 100, 50, 50)], [box(0, 0, 650, 350)], home) == corner
    away = place(call, [box(700, 100, 50, 50)], [box(0, 0, 650, 350)], home)
    assert away != corner
    assert not covered(away, box(700, 100, 50, 50))
    assert not covered(away, box(0, 0, 650, 350))


def test_the_card_is_near_what_it_speaks_about(call: Call) -> None:
    gaps = []
    for x in (0, 200, 400, 600):
        at = place(call, [box(x, 300, 60, 40)])
        dx = max(0, x - at["left"] - SIZE[0], at["left"] - x - 60)
        dy = max(0, 300 - at["top"] - SIZE[1], at["top"] - 340)
        gaps.append(np.hypot(dx, dy))
    assert max(gaps) <= 13
    assert all(gap > 0 for gap in gaps)


def test_what_had_better_be_seen_is_covered_only_for_what_is_spoken_about(call: Call) -> None:
    """All is to be kept visible but one corner: it goes there, unless that is what is ringed."""
    keep = [box(0, 0, 1000, 560), box(0, 560, 650, 240)]
    at = place(call, [box(20, 20, 40, 40)], keep)
    assert not any(covered(at, part) for part in keep)
    at = place(call, [box(660, 570, 330, 220)], keep)
    assert not covered(at, box(660, 570, 330, 220))


def test_sentences_are_joined_and_figures_stand_out(loaded: Page) -> None:
    parts = loaded.evaluate(
        """async () => {
          const { sentence, sentences, share, word } = await import("/static/js/tour/words.js");
          return sentences(sentence`One ${1}.`, null, sentence`${word("fox")} ${share(0.5)}.`);
        }"""
    )
    assert "".join(part["text"] for part in parts) == "One 1. “fox” 50.0\u00a0%."
    assert [p["text"] for p in parts if p["kind"] == "figure"] == ["1", "50.0\u00a0%"]
    assert [p["text"] for p in parts if p["kind"] == "word"] == ["“fox”"]
    assert all(a["kind"] != b["kind"] or a["kind"] == "text" for a, b in pairwise(parts))


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (
            [40, 3, 0, 0],
            "is the top prediction from layer 1 on: 30.0 % there, 40.0 % at the end",
        ),
        ([9, 4, 2, 0], "becomes the top prediction only after the last layer, 2, with 40.0 %."),
        ([0, 0, 0, 0], "is the top prediction from the embedding on: 10.0 % there"),
        ([9, 0, 2, 1], "is the top prediction after layer 0, with 20.0 %, but 2nd at the end"),
        ([9, 4, 2, 4], "is never the top prediction: it is 3rd after layer 1, and 5th at the end"),
        ([9, 4, 2, 1], "is never the top prediction: it rises to 2nd at the end, with 40.0 %."),
    ],
)
def test_where_the_prediction_appears(loaded: Page, ranks: list[int], says: str) -> None:
    parts = loaded.evaluate(
        """async (ranks) => {
          const { lensStep } = await import("/static/js/tour/layers.js");
          const { word } = await import("/static/js/tour/words.js");
          const arrays = { rank: { values: ranks }, probability: { values: [0.1, 0.2, 0.3, 0.4] } };
          const found = await lensStep.find({ lens: () => ({ arrays }) });
          return lensStep.text({ word: word("fox") }, found);
        }""",
        ranks,
    )
    text = "".join(part["text"] for part in parts).replace("\u00a0", " ")
    assert says in text
