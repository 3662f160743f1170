"""The benchmark of the browser's engine takes turns fairly and compares within them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.local.speed import Contestant, Written, table, take_turns

pytestmark = pytest.mark.quick

SPEEDS = {"server": (10.0, 20.0, 40.0), "browser": (20.0, 20.0, 20.0)}
"""Tokens/s of each turn after the one that warms up."""


def contestant(name: str, asked: list[tuple[str, list[int]]]) -> Contestant:
    speeds: Iterator[float] = iter((1.0, *SPEEDS[name]))
    clock = iter(range(0, 100, 2))

    def write(prompt: list[int], n: int) -> Written:
        asked.append((name, prompt))
        return Written([len(asked) if name == "server" else 0] * n, 100.0, next(speeds))

    return Contestant(name, write, lambda: float(next(clock)))


def test_turns_alternate_and_ratios_are_those_within_a_turn() -> None:
    asked: list[tuple[str, list[int]]] = []
    contestants = [contestant(name, asked) for name in SPEEDS]
    turns = list(take_turns(contestants, 3, n_prompt=5, n_tokens=4, vocab_size=100))
    order = [name for name, _ in asked]
    assert order == ["server", "browser", "browser", "server"] * 2
    prompts = [prompt for _, prompt in asked]
    assert prompts[::2] == prompts[1::2], "all read the same prompt"
    assert len({tuple(prompt) for prompt in prompts}) == 4, "no turn finds one in a cache"
    assert list(table(turns, list(SPEEDS)))[2:] == [
        "| server | 100 | 20.0 | 1.00 | 0 of 3 | 500.0 | 1.00 |",
        "| browser | 100 | 20.0 | 1.00 | 3 of 3 | 500.0 | 1.00 |",
    ]
