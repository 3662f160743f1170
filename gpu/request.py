"""Request for a run: the struct that goes from the socket, the HTTP API and the command line to the
scheduler, also between the processes."""

from __future__ import annotations

import msgspec

from gpu.grammar import Grammar
from gpu.interventions.messages import NO_INTERVENTIONS, Interventions, InterventionSpan
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate


class Request(msgspec.Struct, frozen=True):
    """Prompt and settings of one run. `gpu.engine.validation` checks all of it.

    ids            token ids of the prompt
    params         sampling settings
    capture        read activation statistics of every layer back from the device, by a plan that
                   keeps them
    updates        changes of the settings at tokens that are known in advance, as in a replay
    interventions  interventions from the first token on; with `spans`, from the last of `ids` on
    spans          interventions under which all of `ids` but the last were computed, where `ids`
                   is the text of an earlier run that is continued
    priority       requests with a smaller number are served first
    n_written      how many of the last `ids` a run of this request wrote on another engine: the run
                   goes on after them, as that one would have. `updates` then has all that acted
                   there. Events of what was written are not repeated.
    grammar        what the text must follow; None: anything
    n_keep         tokens at the beginning that stay when the context is full and the oldest others
                   leave it, so that the text goes on (`gpu.kv.context_shift`); None: the text ends
                   there, and a longer prompt is refused
    cache_reuse    fewest tokens of a chunk that is reused although the text before it changed, its
                   keys moved to their new positions, which is approximate (`gpu.kv.cache_reuse`);
                   0: none; None: as the engine was loaded
    pace           tokens a second (`gpu.pace`); 0: paused before the first; None: as fast as it
                   goes
    cache_salt     only requests with the same one reuse each other's keys and values, as in vLLM
    """

    ids: list[int]
    params: SamplingParams = SamplingParams()
    capture: bool = False
    updates: tuple[ScheduledUpdate, ...] = ()
    interventions: Interventions = NO_INTERVENTIONS
    spans: tuple[InterventionSpan, ...] = ()
    priority: int = 0
    n_written: int = 0
    grammar: Grammar | None = None
    cache_reuse: int | None = None
    n_keep: int | None = None
    pace: float | None = None
    cache_salt: str = ""
