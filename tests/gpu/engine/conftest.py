"""Fixtures: engines of a scripted runner, closed at the end of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu.engine.engine import Engine
from gpu.load_options import LoadOptions
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer

Opened = Callable[..., Engine]


@pytest.fixture(scope="session")
def one_byte_tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Tokenizer with a token for each byte."""
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def opened(one_byte_tokens: Tokenizer) -> Iterator[Opened]:
    """`opened(runner, …)`: an engine of this runner with these `LoadOptions`."""
    engines: list[Engine] = []

    def made(runner: ScriptedRunner, **options: Any) -> Engine:
        engines.append(Engine(lambda: runner, one_byte_tokens, LoadOptions(**options)))
        return engines[-1]

    yield made
    for engine in engines:
        engine.close()
