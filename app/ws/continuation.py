"""Generations that begin with text a page has already: the rest of one that was interrupted, or a
branch of another, with tokens put in."""

from __future__ import annotations

from app.engines import EngineClient, OnEvent, Tokenizer
from app.protocol import Generate
from gpu import DecodeStream, InvalidRequest, SamplingParams
from gpu.events import Accepted, Done, Timings, TokenText

NOTHING_DONE = Timings(0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)


def checked_written(message: Generate) -> int:
    """How many ids of a request are written text; raises `InvalidRequest` if they cannot be."""
    n_ids = len(message.ids or ())
    if 0 <= message.written <= n_ids:
        return message.written
    what = f"the {n_ids} ids" if n_ids else "ids, but none are given"
    raise InvalidRequest(f"written counts the last of {what}; it is {message.written}", "written")


def written_texts(tokenizer: Tokenizer, ids: list[int], n: int) -> tuple[str, ...]:
    """What each of the last `n` ids adds to the text of those before them: a token that ends inside
    a character adds nothing, and the one that completes it adds the character."""
    if not n:
        return ()
    stream = DecodeStream(tokenizer, ids[:-n])
    return tuple(stream.push(id) for id in ids[-n:])


def is_over(engine: EngineClient, ids: list[int], params: SamplingParams) -> bool:
    """Does the last of `ids` end the text?"""
    return ids[-1] in engine.require_ready().model.eos_ids and not params.ignore_eos


def tell_over(
    engine: EngineClient, ids: list[int], params: SamplingParams, on_event: OnEvent
) -> None:
    """The events of a generation that is over before it begins. Nothing is computed for it."""
    prompt = tuple(TokenText(id, engine.tokenizer.piece(id)) for id in ids)
    context = engine.require_ready().limits.context
    on_event(Accepted(prompt, params, False, 0, context))
    on_event(Done("eos", len(ids), 0, NOTHING_DONE))
