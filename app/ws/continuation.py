"""Generations that continue text the page already has: the rest of an interrupted one, or a branch
of another, with tokens inserted."""

from __future__ import annotations

from app.engine_client import EngineClient, OnEvent, Tokenizer
from app.protocol.messages import Generate
from gpu import DecodeStream, InvalidRequest, Request
from gpu.events import Accepted, Done, Timings, TokenText

ZERO_TIMINGS = Timings(0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)


def continuation_length(message: Generate) -> int:
    """Return how many of the last ids the page has as text already. Raises `InvalidRequest`."""
    return _number_of_ids(message, "written")


def answer_length(message: Generate) -> int:
    """Return how many of the last ids are of the answer. Raises `InvalidRequest`."""
    return max(_number_of_ids(message, "n_read"), continuation_length(message))


def _number_of_ids(message: Generate, name: str) -> int:
    n, n_ids = getattr(message, name), len(message.ids or ())
    if 0 <= n <= n_ids:
        return int(n)
    raise InvalidRequest(f"{name} must be from 0 to {n_ids}, the number of ids, but got {n}", name)


def continuation_texts(tokenizer: Tokenizer, ids: list[int], n: int) -> tuple[str, ...]:
    """Return the text that each of the last `n` ids adds. A token that ends inside a character adds
    nothing; the one that completes the character adds it."""
    if not n:
        return ()
    stream = DecodeStream(tokenizer, ids[:-n])
    return tuple(stream.push(id) for id in ids[-n:])


def has_ended(engine: EngineClient, request: Request) -> bool:
    """Return whether the last token of `request` ends the text."""
    ends = request.ids[-1] in engine.require_ready().model.eos_ids
    return ends and not request.params.ignore_eos


def report_ended(engine: EngineClient, request: Request, on_event: OnEvent) -> None:
    """Send the events of a generation whose text has ended already. The engine gets no request."""
    prompt = tuple(TokenText(id, engine.tokenizer.piece(id)) for id in request.ids)
    context = engine.require_ready().limits.context
    on_event(Accepted(prompt, request.params, False, 0, context))
    on_event(Done("eos", len(prompt), 0, ZERO_TIMINGS))
