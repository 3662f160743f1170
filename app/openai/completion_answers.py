"""Answers of `/v1/chat/completions` and `/v1/completions`: whole, or a stream of server-sent events
that ends with `[DONE]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from app.http.errors import body_of_engine_error
from app.openai.choices import Choices
from app.openai.completion_format import (
    CompletionFormat,
    WholeChoice,
    timings,
    usage,
)
from gpu import EngineError
from gpu.events import Done, Token


def whole(choices: Choices, response: CompletionFormat, n: int) -> dict[str, Any]:
    """Return the answer once all choices have ended: the best `n` of each prompt, if there are
    more."""
    tokens: dict[int, list[Token]] = {}
    ended: dict[int, Done] = {}
    for found in choices:
        if found is None:
            continue
        index, event = found
        if isinstance(event, Token):
            tokens.setdefault(index, []).append(response.kept(event))
        elif isinstance(event, Done):
            ended[index] = event
    written = [
        WholeChoice(index, tokens.get(index, []), done) for index, done in sorted(ended.items())
    ]
    return whole_answer(written, response, n, choices.seed_of)


def whole_answer(
    written: Sequence[WholeChoice],
    response: CompletionFormat,
    n: int,
    seed_of: Callable[[int], int | None],
) -> dict[str, Any]:
    """Return the answer with the best `n` choices of each prompt."""
    n_runs, kept = response.n_runs, []
    for at in range(0, len(written), n_runs):
        of_prompt = list(written[at : at + n_runs])
        if n_runs > n:
            of_prompt.sort(key=lambda choice: choice.mean_logprob, reverse=True)
        kept += of_prompt[:n]
    answer = response.answer(kept)
    if len(written) > 1:
        for choice, fields in zip(kept, answer["choices"], strict=True):
            fields.update(_extra_fields(seed_of, choice.index, choice.done))
    first = _extra_fields(seed_of, 0, written[0].done)
    return answer | {"usage": usage([choice.done for choice in written], n_runs)} | first


def stream(choices: Choices, response: CompletionFormat, with_usage: bool) -> Iterator[bytes]:
    """Yield the events of a stream. Comments keep it alive while there are no tokens."""
    extra = {"usage": None} if with_usage else {}
    begun: set[int] = set()
    eos: dict[int, list[Token]] = {}
    ended: dict[int, Done] = {}
    try:
        yield from _first(response, 0, begun, extra)
        for found in choices:
            if found is None:
                yield b": still here\n\n"
                continue
            index, event = found
            yield from _first(response, index, begun, extra)
            if isinstance(event, Token) and event.eos:
                eos[index] = [event]  # told with the reason, as vLLM does
            elif isinstance(event, Token):
                added = response.added(index, event)
                if added is not None or response.logprobs or response.token_ids:
                    content = added or response.delta("")
                    yield _sse(response.chunk(index, content, [event], None) | extra)
            elif isinstance(event, Done):
                ended[index] = event
                rest, at_end = response.rest(index), eos.get(index, [])
                last = response.chunk(index, rest, at_end, response.finish_reason(index, event))
                yield _sse(last | extra | _extra_fields(choices.seed_of, index, event))
        if with_usage:
            ends = [ended[index] for index in sorted(ended)]
            yield _sse(
                response.frame(response.chunk_object, []) | {"usage": usage(ends, response.n_runs)}
            )
    except EngineError as error:
        yield _sse(body_of_engine_error(error))
    yield b"data: [DONE]\n\n"


def _first(
    response: CompletionFormat, index: int, begun: set[int], extra: dict[str, Any]
) -> Iterator[bytes]:
    """Yield the first chunk of a choice that has not begun, if there is one before any token."""
    if index not in begun and (chunk := response.begin(index)) is not None:
        yield _sse(chunk | extra)
    begun.add(index)


def _extra_fields(seed_of: Callable[[int], int | None], index: int, done: Done) -> dict[str, Any]:
    return {"timings": timings(done), "seed": seed_of(index)}


def _sse(message: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(message) + b"\n\n"
