"""Commands to the engine's thread whose owners leave, which come at its end, or amid which the
device fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait

import pytest

from gpu.engine.decoding import Decoding
from gpu.engine.engine import Engine
from gpu.errors import DeviceError, EngineClosed
from gpu.inspection.requests import Losses
from gpu.load_options import LoadOptions
from gpu.pace import LEAST_PACE
from gpu.request import Request
from gpu.runner import Runner
from gpu.sampling_params import SamplingParams
from gpu.text.tokenizer import Tokenizer
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer, expected

PATIENCE_S = 60.0


class ClosesWhenTold(ScriptedRunner):
    """Runner whose device takes its time to close."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closing, self.may_close = threading.Event(), threading.Event()

    def close(self) -> None:
        self.is_closing.set()
        assert self.may_close.wait(PATIENCE_S)
        super().close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture
def runner() -> ClosesWhenTold:
    return ClosesWhenTold()


@pytest.fixture
def engine(tokenizer: Tokenizer, runner: ClosesWhenTold) -> Iterator[Engine]:
    engine = Engine(lambda: runner, tokenizer, LoadOptions())
    yield engine
    runner.may_close.set()
    engine.close()


def test_an_answer_that_nobody_waits_for_any_more_ends_nothing(
    engine: Engine, runner: ScriptedRunner
) -> None:
    with runner.held():
        run = engine.submit(Request([3], SamplingParams(max_tokens=20)))
        left = [run.start_update(temperature=0.0), engine.inspect(Losses([1, 2, 3]))]
        assert all(future.cancel() for future in left)
    assert [token.id for token in run] == expected([3], 20)
    assert wait(left, PATIENCE_S).done == set(left), "those who wait for them are told"
    assert engine.failure is None


def test_nothing_is_taken_while_the_device_is_closed(
    engine: Engine, runner: ClosesWhenTold
) -> None:
    """Nobody would read it."""
    run = engine.submit(Request([3], SamplingParams(max_tokens=60), pace=LEAST_PACE))
    closer = threading.Thread(target=engine.close)
    closer.start()
    assert runner.is_closing.wait(PATIENCE_S)
    with pytest.raises(EngineClosed):
        engine.submit(Request([3]))
    with pytest.raises(EngineClosed):
        run.update(temperature=1.0)
    with pytest.raises(EngineClosed):
        engine.inspect(Losses([1, 2, 3]))
    runner.may_close.set()
    closer.join()


def test_a_step_that_is_lost_amid_an_update_ends_the_engine(
    engine: Engine, runner: ClosesWhenTold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs would wait for the step's samples for ever."""
    thread = engine._thread
    collect, lost = thread._collect, [DeviceError("the device is lost")]

    def lose_once(runner: Runner) -> None:
        if thread._in_flight or not lost:
            collect(runner)
        else:
            raise lost.pop()

    run = engine.submit(Request([3], SamplingParams(max_tokens=60), pace=LEAST_PACE))
    next(iter(run))
    monkeypatch.setattr(Decoding, "has_drafts", True)
    monkeypatch.setattr(thread, "_collect", lose_once)
    with pytest.raises(DeviceError, match="the device is lost"):
        run.update(temperature=1.0)
    assert runner.is_closing.wait(PATIENCE_S)
    assert engine.failure is not None
    assert "the device is lost" in engine.failure
