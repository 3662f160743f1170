"""Two engine processes with the bundled model, of which one is killed while it writes."""

from __future__ import annotations

import functools
import os
import signal

import pytest
from msgspec import UNSET

from app.config import Settings
from app.engine.loading import load_engine
from app.engine.supervisor import SupervisedEngine
from app.engine_client import Run, ServedModel, UnavailableError
from app.models.find_model import find_model
from app.models.switching import engine_loader
from app.replicas.engine import ReplicatedEngine
from app.replicas.fetch_once import FetchOnce
from app.server import make_engine
from gpu import Interventions, LayerFactor, Request, SamplingParams, ScheduledUpdate
from gpu.events import Token, Updated
from gpu.pace import LEAST_PACE, PaceChange
from tests.app.page import PATIENCE_S, wait_until
from tests.app.replicas.mortal import Written

N_TOKENS = 100
ACTING = Interventions(mlp=(LayerFactor(1, 0.8),))


def facts(token: Token) -> tuple[object, ...]:
    return (token.index, token.id, token.text, token.logprob, token.draw, token.mass)


@pytest.mark.slow
def test_a_text_is_written_to_its_end_with_the_same_numbers_when_its_process_is_killed() -> None:
    settings = Settings(model="tale", data_parallel_size=2, weight_cache=0)
    model = find_model(settings)
    load = engine_loader(functools.partial(load_engine, loras={}))(settings, model)
    served = ServedModel(load, model.tokenizer, model.path)
    engine = make_engine(settings, served, FetchOnce(model.fetch))
    assert isinstance(engine, ReplicatedEngine)
    engine.start()
    try:
        wait_until(lambda: all(replica.hello is not None for replica in engine.replicas))
        ids = model.tokenizer.encode("Once upon a time there was a fox who")
        params = SamplingParams(max_tokens=N_TOKENS, seed=11, temperature=0.9, ignore_eos=True)
        killed = Written()
        run = engine.submit(Request(ids, params, pace=0), killed)
        step(run, 6)
        wait_token(killed, 5)
        first = run.update(temperature=1.3, interventions=ACTING)
        step(run, 6)
        wait_token(killed, first + 5)
        write_slowly(run)
        kill_writer(engine)
        write_to_the_end(run)
        killed.wait_done()

        whole = Written()
        change = ScheduledUpdate(first, {"temperature": 1.3}, interventions=ACTING)
        engine.submit(Request(ids, params, updates=(change,)), whole)
        whole.wait_done()
        assert [facts(t) for t in killed.of(Token)] == [facts(t) for t in whole.of(Token)]
        assert settings_of(killed) == whole.of(Updated)
    finally:
        engine.close()


def step(run: Run, n: int) -> None:
    """Let a paused run write `n` tokens and no more: it cannot come to its end before a test has
    done something."""
    run.update(pace=PaceChange(steps=n))


def write_slowly(run: Run) -> None:
    """Let a paused run write on at the least pace, at which it lasts until its engine is killed."""
    run.update(pace=PaceChange(LEAST_PACE))


def write_to_the_end(run: Run, seconds: float = PATIENCE_S) -> None:
    """Let a run whose engine was killed write at full speed, as soon as it has another."""

    def goes_on() -> bool:
        try:
            run.update(pace=PaceChange(None))
        except UnavailableError:
            return False
        return True

    wait_until(goes_on, seconds)


def settings_of(written: Written) -> list[Updated]:
    """Return the changes of a text but for those of its pace."""
    return [event for event in written.of(Updated) if event.pace is UNSET]


def wait_token(written: Written, index: int) -> None:
    written.until(lambda event: isinstance(event, Token) and event.index == index)


def kill_writer(engine: ReplicatedEngine) -> None:
    """Kill the process that has a run."""
    (pid,) = {
        replica.pid
        for replica, n_runs in zip(engine.replicas, engine.n_runs, strict=True)
        if n_runs and isinstance(replica, SupervisedEngine)
    }
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
