"""`tokenglass generate` with the fake engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from app import tale
from app.cli.main import main
from app.models.find_model import Model
from gpu import DeviceError, DtypeChoice, Request
from tests.app import fake_engine
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions
from tests.app.fake_tokenizer import STORY, FakeTokenizer


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `find_with_line` return the fake engine's model."""

    def find(*_: Any, **__: Any) -> Model:
        return Model("fake", tale.model_dir(), fake_engine.FakeTokenizer(), DtypeChoice("f16"))

    monkeypatch.setattr("app.cli.generate.find_with_line", find)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeEngine]]:
    """Engines that were loaded; at the end all must be closed."""
    made: list[FakeEngine] = []

    def load(*_: Any, **__: Any) -> FakeEngine:
        made.append(FakeEngine(FakeOptions(delay=0)))
        return made[-1]

    monkeypatch.setattr("app.cli.generate.load_engine", load)
    yield made
    assert made
    assert all(engine.closed for engine in made)


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["generate", *args], catch_exceptions=False)


def test_generate_prints_the_text_and_how_to_repeat_it(engines: list[FakeEngine]) -> None:
    result = run("Once", "--temperature", "0", "--max-tokens", "60")
    assert result.exit_code == 0
    assert STORY.startswith(result.stdout.rstrip("\n"))
    assert len(result.stdout) > 100
    assert re.search(r"60 tokens, [0-9.]+ per second, seed [0-9]+, ended by length", result.stderr)


def test_the_seed_repeats_it(engines: list[FakeEngine]) -> None:
    first = run("Once", "--temperature", "2", "--max-tokens", "30")
    found = re.search(r"seed ([0-9]+)", first.stderr)
    assert found is not None
    again = run("Once", "--temperature", "2", "--max-tokens", "30", "--seed", found.group(1))
    assert again.stdout == first.stdout


class Coloured(FakeEngine):
    """Engine whose tokens have an escape sequence."""

    def submit(self, request: Request, on_event: Any = None) -> Any:
        run = super().submit(request, on_event)
        if on_event is not None:  # called by the run that is iterated
            return run

        class Run:
            done = property(lambda self: run.done)

            def __iter__(self) -> Any:
                for token in run:
                    yield msgspec.structs.replace(token, text=f"\x1b[1m{token.text}")

        return Run()


def test_a_pipe_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Coloured(FakeOptions(delay=0))
    monkeypatch.setattr("app.cli.generate.load_engine", lambda *_, **__: engine)
    result = run("Once", "--temperature", "0", "--max-tokens", "2")
    assert result.stdout.count("\x1b[1m") == 2


def test_chat_and_stop(engines: list[FakeEngine]) -> None:
    result = run("Tell me a story", "--chat", "--temperature", "0", "--stop", " there")
    assert result.stdout == "Once upon a time\n"
    assert "ended by stop" in result.stderr


def test_chat_with_a_model_that_has_no_template_completes_and_says_so(
    engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run("Once", "--temperature", "0", "--max-tokens", "9")
    monkeypatch.setattr("tests.app.fake_engine.FakeTokenizer", lambda **_: FakeTokenizer(None))
    result = run("Once", "--chat", "--temperature", "0", "--max-tokens", "9")
    assert "no chat template, so it continues the text" in result.stderr
    assert result.stdout == plain.stdout


@pytest.mark.parametrize(
    "args",
    [["--temperature", "-1"], ["--top-p", "nan"], ["--seed", "-5"], ["--max-tokens", "0"]],
)
def test_a_value_out_of_range_is_one_line_and_exit_code_2(
    engines: list[FakeEngine], args: list[str]
) -> None:
    result = run("Once", *args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {args[0].strip('-').replace('-', '_')} must be")
    assert result.stderr.count("\n") == 1


def test_a_prompt_that_is_too_long_is_exit_code_2(engines: list[FakeEngine]) -> None:
    result = run("word " * 2000)
    assert result.exit_code == 2
    assert "shorten the prompt by at least" in result.stderr


def test_a_device_error_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise DeviceError("no adapter; install a driver")

    monkeypatch.setattr("app.cli.generate.load_engine", fail)
    result = run("Once")
    assert (result.exit_code, result.stderr) == (1, "Error: no adapter; install a driver\n")


class Interrupted(FakeEngine):
    """Stream that is interrupted by Ctrl+C at the fifth token."""

    def submit(self, request: Request, on_event: Any = None) -> Any:
        run = super().submit(request, on_event)
        if on_event is not None:  # called by the run that is iterated
            return run
        tokens = iter(run)

        class Run:
            done = None
            cancelled = False

            def cancel(self) -> None:
                self.cancelled = True
                run.cancel()

            def __iter__(self) -> Any:
                for number, token in enumerate(tokens):
                    if number == 5:
                        raise KeyboardInterrupt
                    yield token

        return Run()


def test_ctrl_c_keeps_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Interrupted(FakeOptions(delay=0))
    monkeypatch.setattr("app.cli.generate.load_engine", lambda *_, **__: engine)
    result = run("Once", "--temperature", "0", "--max-tokens", "400")
    assert result.stdout == "Once upon a time there\n"
    assert result.exit_code == 130
    assert engine.closed
