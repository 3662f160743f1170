"""Stop strings across token boundaries, against a search of the whole text."""

from __future__ import annotations

import random

import pytest

from gpu.text.stop_strings import StopMatcher

pytestmark = pytest.mark.smoke


def run(stops: list[str], pieces: list[str]) -> tuple[list[list[tuple[int, str]]], bool]:
    """Return what each push returned (and the flush, if there was one), and whether the text
    stopped."""
    matcher: StopMatcher[int] = StopMatcher(stops)
    given: list[list[tuple[int, str]]] = []
    for i, piece in enumerate(pieces):
        released, stopped = matcher.push(i, piece)
        given.append(released)
        if stopped:
            return given, True
    given.append(matcher.flush())
    return given, False


def shown(given: list[list[tuple[int, str]]]) -> str:
    return "".join(text for released in given for _, text in released)


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    """Return the text before the stop string that is complete first; of several, the longest."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (text[: min(found)[1]], True) if found else (text, False)


@pytest.mark.parametrize(
    ("stops", "pieces", "text"),
    [
        ([], ["a", "b"], "ab"),
        (["END"], ["all", " E", "N", "D", "more"], "all "),
        (["END"], ["EN", "EN", "D"], "EN"),
        (["END"], ["E", "N"], "EN"),
        (["aab"], ["a", "a", "a", "b"], "a"),
        (["abab"], ["ab", "ac", "ababab"], "abac"),
        (["abcd", "bc"], ["a", "b", "c", "d"], "a"),  # "bc" is complete before "abcd"
        (["abcd", "bc"], ["abcd"], "a"),  # and however it is cut into tokens
        (["bc", "abc"], ["xabc"], "x"),
        (["\nUser:", "\nBot:"], ["Hi\n", "User", ": x"], "Hi"),
        (["\n\n"], ["a\n", "b\n", "", "\n", "c"], "a\nb"),
        (["👩‍👧"], ["a👩", "\u200d", "👧b"], "a"),
        (["x"], ["x"], ""),
    ],
)
def test_the_text_ends_before_the_stop_string(
    stops: list[str], pieces: list[str], text: str
) -> None:
    assert shown(run(stops, pieces)[0]) == text


def test_tokens_are_held_only_while_they_may_begin_a_stop_string() -> None:
    given, stopped = run(["END"], ["a", "xE", "N", "O", "EN"])
    assert given == [[(0, "a")], [], [], [(1, "xE"), (2, "N"), (3, "O")], [], [(4, "EN")]]
    assert not stopped


def test_tokens_without_text_keep_their_position() -> None:
    given, _ = run(["END"], ["", "E", "", "x"])
    assert given == [[(0, "")], [], [], [(1, "E"), (2, ""), (3, "x")], []]


def test_at_the_end_every_token_is_returned_without_the_stop_string() -> None:
    given, stopped = run(["END"], ["aE", "N", "Dz"])
    assert given == [[], [], [(0, "a"), (1, ""), (2, "")]]
    assert stopped


def test_nothing_is_left_after_the_stop_string() -> None:
    matcher: StopMatcher[int] = StopMatcher(["ab"])
    assert matcher.push(0, "xa") == ([], False)
    assert matcher.push(1, "bc") == ([(0, "x"), (1, "")], True)
    assert matcher.flush() == []


def test_random_texts_against_a_search_of_the_whole() -> None:
    rng = random.Random(7)

    def word(longest: int) -> str:
        return "".join(rng.choice("ab") for _ in range(rng.randint(1, longest)))

    n_stopped = 0
    for _ in range(20_000):
        stops = [word(6) for _ in range(rng.randrange(4))]
        pieces = [word(4) if rng.random() < 0.9 else "" for _ in range(rng.randrange(12))]
        given, stopped = run(stops, pieces)
        # No tokens are read after the one that stopped the text.
        text = "".join(pieces[: len(given)] if stopped else pieces)
        assert (shown(given), stopped) == expected(stops, text)
        items = [item for released in given for item, _ in released]
        assert items == list(range(len(given) if stopped else len(pieces)))
        n_stopped += stopped
    assert 5_000 < n_stopped < 19_000


def test_shown_text_is_final_and_no_decided_token_is_held() -> None:
    """After every push, the shown text contains no part of a stop string, and the first held token
    could begin one."""
    rng = random.Random(8)
    for _ in range(5_000):
        stops = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 5))) for _ in range(2)]
        matcher: StopMatcher[int] = StopMatcher(stops)
        pieces = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 3))) for _ in range(8)]
        text, n_shown, n_released = "", 0, 0
        for i, piece in enumerate(pieces):
            text += piece
            released, stopped = matcher.push(i, piece)
            n_shown += sum(len(part) for _, part in released)
            n_released += len(released)
            if stopped:
                break
            begins = [at for at in range(len(text)) if any(s.startswith(text[at:]) for s in stops)]
            first = min(begins, default=len(text))
            assert n_shown <= first
            if n_released <= i:
                assert n_shown + len(pieces[n_released]) > first
