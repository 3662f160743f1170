"""Requests of many kinds that arrive, branch off each other and are cancelled in a drawn order."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu.engine.engine import Engine
from gpu.events import Done, Event, Token
from gpu.info import EngineStats
from gpu.inspection.requests import CacheBlocks
from gpu.interventions.messages import NO_INTERVENTIONS, Interventions, LayerFactor
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate

WEAK_MLP = Interventions(mlp=(LayerFactor(0, 0.5),))
WAIT_SECONDS = 120.0
"""Longest silence of an engine that has something to do."""


@dataclass(frozen=True)
class Arrival:
    """A request, sent when all requests together have written `after` tokens. `cancel_at`: tokens
    after which its client goes away; None: it stays."""

    request: Request
    after: int
    cancel_at: int | None


def draw_traffic(
    draw: random.Random, n: int, *, vocab_size: int, longest: int, most_tokens: int
) -> list[Arrival]:
    """Return `n` requests with prompts of up to `longest` tokens that write up to `most_tokens`.

    Most prompts begin as another does, some are the same; a third of the requests is greedy, some
    of the others have a penalty. Some are under interventions, and some change their
    settings under way.
    """
    texts = [[draw.randrange(3, vocab_size) for _ in range(longest)] for _ in range(4)]
    arrivals, after = [], 0
    for i in range(n):
        text = draw.choice(texts)
        kept = draw.randint(1, longest)
        tail = [draw.randrange(3, vocab_size) for _ in range(draw.choice((0, 0, 3, 9)))]
        prompt = [*text[:kept], *tail][-longest:]
        texts.append(prompt)
        settings: dict[str, Any] = {"temperature": 0.0, "seed": draw.randrange(1 << 32)}
        if i % 3:
            settings |= {"temperature": 0.9, "top_p": 0.95}
            settings["repetition_penalty"] = draw.choice((1.0, 1.2))
        n_tokens = draw.randint(1, draw.choice((8, most_tokens)))
        params = SamplingParams(max_tokens=n_tokens, ignore_eos=True, **settings)
        request = Request(
            prompt,
            params,
            updates=_draw_updates(draw, n_tokens),
            interventions=draw.choice((*[NO_INTERVENTIONS] * 7, WEAK_MLP)),
            priority=draw.choice((0, 0, 0, 1, -1)),
        )
        cancelled = n_tokens > 2 and not draw.randrange(4)
        arrivals.append(Arrival(request, after, draw.randrange(1, n_tokens) if cancelled else None))
        after += draw.choice((0, 0, 0, 0, 0, 2, 25))
    return arrivals


def _draw_updates(draw: random.Random, n_tokens: int) -> tuple[ScheduledUpdate, ...]:
    """Return the changes of the settings under way; most requests have none."""
    if n_tokens < 3 or draw.randrange(6):
        return ()
    at = draw.randrange(1, n_tokens - 1)
    change = draw.choice((None, WEAK_MLP))
    return (
        ScheduledUpdate(at, {"temperature": 0.7}),
        ScheduledUpdate(at + 1, {"top_k": 40}, interventions=change),
    )


@dataclass
class Written:
    """What came of a request."""

    tokens: list[Token] = field(default_factory=list)
    done: Done | None = None


def write_alone(engine: Engine, arrivals: Sequence[Arrival]) -> list[list[Token]]:
    """Run the requests one after the other, none of them cancelled."""
    return [list(engine.submit(arrival.request)) for arrival in arrivals]


def stats_after_runs(engine: Engine) -> EngineStats:
    """Return the stats once the blocks of all runs that are done are free: a run tells that it is
    done a moment before, and the engine answers questions after."""
    engine.inspect(CacheBlocks()).result()
    return engine.stats


class Together:
    """Sends requests as they arrive, and cancels those whose clients go away."""

    def __init__(self, engine: Engine, arrivals: Sequence[Arrival]) -> None:
        self._engine = engine
        self._arrivals = arrivals
        self._changed = threading.Condition()
        self._n_tokens = 0
        self.written: list[Written] = []

    def run(self) -> list[Written]:
        """Return what all requests wrote."""
        leaving = {}
        for i, arrival in enumerate(self._arrivals):
            self._wait_until_due(arrival, leaving)
            written = Written()
            self.written.append(written)
            run = self._engine.submit(arrival.request, lambda e, w=written: self._note(w, e))
            if arrival.cancel_at is not None:
                leaving[i] = run
        self._wait_for(lambda: not self._n_alive, leaving)
        return self.written

    @property
    def _n_alive(self) -> int:
        return sum(written.done is None for written in self.written)

    def _wait_until_due(self, arrival: Arrival, leaving: dict[int, Any]) -> None:
        self._wait_for(lambda: self._n_tokens >= arrival.after or not self._n_alive, leaving)

    def _wait_for(self, condition: Any, leaving: dict[int, Any]) -> None:
        """Wait until `condition` is true; cancel the runs of `leaving` that are due meanwhile."""
        with self._changed:
            while True:
                for i in [i for i in leaving if self._leaves(i)]:
                    leaving.pop(i).cancel()
                if condition():
                    return
                assert self._changed.wait(WAIT_SECONDS), "the engine stands still"

    def _leaves(self, i: int) -> bool:
        at = self._arrivals[i].cancel_at
        return at is not None and len(self.written[i].tokens) >= at

    def _note(self, written: Written, event: Event) -> None:
        """Receive an event, on the engine's thread."""
        if not isinstance(event, Token | Done):
            return
        with self._changed:
            if isinstance(event, Token):
                written.tokens.append(event)
                self._n_tokens += 1
            else:
                written.done = event
            self._changed.notify()
