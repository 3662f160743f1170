"""Events of a run: plain messages that are also sent over the engine's pipe."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from gpu.grammar import Grammar
from gpu.interventions.messages import Interventions
from gpu.sampling_params import SamplingParams
from gpu.step import CUTS, ExpertUse

Reason = Literal["eos", "stop", "length", "context", "cancelled", "error"]
Masses = Annotated[tuple[float, ...], msgspec.Meta(min_length=4, max_length=len(CUTS))]
"""See `gpu.step.Sampled.mass`. Replays from before a filter was added have fewer."""


class TokenText(msgspec.Struct, frozen=True):
    """A token and its piece of text (of the prompt: may hold U+FFFD for part of a character)."""

    id: int
    text: str


class CandidateText(msgspec.Struct, frozen=True):
    """A candidate of `gpu.step.Candidate` with its text. `after` is None where an upstream server
    chose the token; `before` is then at temperature 1."""

    id: int
    text: str
    before: float
    after: float | None
    cut: str


class LayerStats(msgspec.Struct, frozen=True):
    """Measurements of one layer for one token; fields as in `gpu.step.Captured`. Times are of the
    whole step, which may have held rows of other sequences; None without in-pass timestamps."""

    residual: float
    attention: float
    mlp: float
    attention_cosine: float
    mlp_cosine: float
    entropy: tuple[float, ...]
    attention_ms: float | None = None
    mlp_ms: float | None = None


class ExpertChoice(msgspec.Struct, frozen=True):
    """Experts that one token was routed to in `layer`, and their gates, the factors of their
    outputs; the largest gate first."""

    layer: int
    experts: tuple[int, ...]
    gates: tuple[float, ...]


class TokenStats(msgspec.Struct, frozen=True):
    """Measurements of every layer for one token.

    n_rows    rows of the step whose times are given
    timed_at  position of the token whose step was timed: this one or an earlier one; None without
              times
    routes    the experts of each layer that has any; absent in other models
    """

    position: int
    embedding: float
    layers: tuple[LayerStats, ...]
    n_rows: int
    embed_ms: float | None = None
    head_ms: float | None = None
    timed_at: int | None = None
    routes: tuple[ExpertChoice, ...] | msgspec.UnsetType = msgspec.UNSET


class StepTimes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Milliseconds of the step that made a token. `interval` is the time since the token before
    (since the request for the first), `paced` how much of it the run waited because of its pace."""

    interval: float
    gpu: float | None
    encode: float
    wait: float
    read: float
    paced: float = 0.0


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The request is valid and waits for a slot. `position` in the queue: 0 starts at once. `run`:
    number of the run in the answers of instruments.
    Filled in outside of the engine: `texts`, for a continued text, what each of the prompt's last
    tokens adds to it, as `Token.text`; `dropped`, the indexes of the request's messages that were
    left out because the conversation was too long; `grammar`, what the text must follow because the
    request requires a call of a tool; `engine`, the number of the engine that has the
    run, from 1, where there are several."""

    prompt: tuple[TokenText, ...]
    params: SamplingParams
    capture: bool
    position: int
    context: int
    texts: tuple[str, ...] = ()
    dropped: tuple[int, ...] = ()
    run: int = 0
    grammar: Grammar | msgspec.UnsetType = msgspec.UNSET
    engine: int | msgspec.UnsetType = msgspec.UNSET


class Queued(msgspec.Struct, frozen=True, tag="queued"):
    """The place in the queue changed; 0: it starts now. `engine` and `run`, as in `Accepted`: the
    engine before is gone, and the run goes on at this one."""

    position: int
    engine: int | msgspec.UnsetType = msgspec.UNSET
    run: int | msgspec.UnsetType = msgspec.UNSET


class MovedChunk(msgspec.Struct, frozen=True):
    """Tokens first … end − 1 of a prompt, whose keys and values were computed at the positions from
    `source` on of another text and moved."""

    first: int
    end: int
    source: int


class Prefill(msgspec.Struct, frozen=True, tag="prefill"):
    """`done` of `total` prompt tokens are in the KV cache; `reused` of them were there already, and
    those of the chunks `moved` were there after another text, so that what follows is approximate;
    absent without any. `slid` is as in `Token`. `reused_blocks`: KV blocks that held the reused
    tokens, of all groups of layers (`gpu.kv.groups`); absent if no layer has a window.
    `ms` counts from the start of the run, `gpu_ms` is of this chunk's step alone.
    `stats` has one entry for each prompt token of this chunk when captured; `experts` is as in
    `Token`."""

    done: int
    total: int
    reused: int
    ms: float
    gpu_ms: float | None
    kv_blocks: int
    stats: tuple[TokenStats, ...] = ()
    experts: ExpertUse | None = None
    moved: tuple[MovedChunk, ...] | msgspec.UnsetType = msgspec.UNSET
    slid: int | msgspec.UnsetType = msgspec.UNSET
    reused_blocks: int | msgspec.UnsetType = msgspec.UNSET


class Draft(msgspec.Struct, frozen=True):
    """A draft and what became of it. `place`: 0 for the first of its step. If it was not accepted,
    neither were those after it, `discarded`."""

    id: int
    text: str
    place: int
    accepted: bool
    discarded: tuple[TokenText, ...] = ()


class Allowed(msgspec.Struct, frozen=True):
    """Tokens that a grammar allowed in the place of a token: how many, and their probability by the
    model alone, together."""

    n: int
    probability: float


class Watermark(msgspec.Struct, frozen=True):
    """Greenness of a token that a watermark could favour: whether it is green, and the probability
    that all green tokens together had before the bias."""

    green: bool
    probability: float


class Token(msgspec.Struct, frozen=True, tag="token"):
    """One written token. `text` joined over all tokens is the text of the run: a token that ends
    inside a character has "" and the one that completes it has the whole character. `eos` marks the
    end-of-sequence token, whose text is "". `stats` are those of the step that chose this token, at
    `stats.position`; `experts` counts all rows of that step, in the first event of the step, and is
    zero in its other events; None unless experts are offloaded.
    `draft`: what speculative decoding proposed in its place; None if nothing. `allowed`: absent
    without a grammar; all but `logprob` is then about the allowed tokens alone, as if there were no
    others. An upstream server (`app.upstream`) does not report what is None here; its `rank` is
    known among the candidates, and its `logprob` is not a number if none was reported. `slid`: how
    many tokens after the first `n_keep` had left the cache when it was chosen
    (`gpu.kv.context_shift`); absent while all are there. `watermark`: absent if it was drawn
    without one."""

    index: int
    id: int
    text: str
    logprob: float
    probability: float | None
    rank: int | None
    n_kept: int | None
    draw: float | None
    mass: Masses | None
    candidates: tuple[CandidateText, ...]
    times: StepTimes
    kv_blocks: int
    stats: TokenStats | None = None
    eos: bool = False
    experts: ExpertUse | None = None
    draft: Draft | None = None
    allowed: Allowed | msgspec.UnsetType = msgspec.UNSET
    slid: int | msgspec.UnsetType = msgspec.UNSET
    watermark: Watermark | msgspec.UnsetType = msgspec.UNSET


class Preview(msgspec.Struct, frozen=True, tag="preview"):
    """Candidates of token `index` of a paused run under the present settings, before it is drawn;
    the fields are those of that `Token`. A change of the settings is followed by another one.
    `candidates` is empty where they are no longer kept."""

    index: int
    candidates: tuple[CandidateText, ...]
    n_kept: int
    mass: Masses
    allowed: Allowed | msgspec.UnsetType = msgspec.UNSET


class Updated(
    msgspec.Struct,
    frozen=True,
    tag="updated",
    omit_defaults=True,
    rename={"interventions": "reach"},
):
    """Settings changed; the token at `index` is the first they apply to. `interventions`: all that
    are now in force, if the change replaced them; they act on the pass that chooses that token.
    `pace`: the new pace, as in `gpu.request`, if it changed."""

    index: int
    params: SamplingParams
    capture: bool
    interventions: Interventions | None = None
    pace: float | msgspec.UnsetType | None = msgspec.UNSET


class Timings(msgspec.Struct, frozen=True):
    """Timings in milliseconds: names and meaning of llama-server's `timings`, which clients already
    parse, then our own. cache_n: prompt tokens found in the KV cache, cache_moved_n of them after
    another text (`cache_reuse`); prompt_n: those computed; ttft: request to first token; tpot: mean
    time between tokens after the first.

    draft_n, draft_n_accepted        drafts that were verified, and those accepted
    draft_n_by_position,             these by their place among the drafts of a step
    draft_n_accepted_by_position
    draft_speedup                    expected time of the verified steps' tokens one by one, divided
                                     by the time of the steps and of drafting; 0 without drafts
    draft_ms                         time in which a draft model made these drafts
    paced_ms                         time in which the run waited because of its pace, which none of
                                     the other times includes
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    queue_ms: float
    ttft_ms: float
    tpot_ms: float
    draft_n: int = 0
    draft_n_accepted: int = 0
    draft_n_by_position: tuple[int, ...] = ()
    draft_n_accepted_by_position: tuple[int, ...] = ()
    draft_speedup: float = 0.0
    cache_moved_n: int = 0
    draft_ms: float = 0.0
    paced_ms: float = 0.0


class CalledTool(msgspec.Struct, frozen=True):
    """A call of a tool that a run wrote; `arguments` is JSON, as the model wrote it."""

    id: str
    name: str
    arguments: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The run ended. `reason` "error" comes with `message`.
    Filled in outside of the engine, for a request with tools: `tool_calls` in the text, and
    `content`, the text outside of them."""

    reason: Reason
    prompt_tokens: int
    completion_tokens: int
    timings: Timings
    message: str = ""
    content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: tuple[CalledTool, ...] | msgspec.UnsetType = msgspec.UNSET


Event = Accepted | Queued | Prefill | Preview | Token | Updated | Done
