"""`POST /v1/embeddings`: vectors of texts, for OpenAI clients.

A vector is the model's last hidden states, after the final norm, pooled and scaled to length 1. The
default `pooling` is "last", as in vLLM for decoder models: only the last token has seen the whole
text. Texts are read as /v1/completions reads a prompt, and share its prefix cache.
"""

from __future__ import annotations

import base64
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from flask import Flask, Response

from app.engine.client import ASKER_IDS, EngineClient, Tokenizer
from app.http.client_limits import place
from app.http.disconnect import client_gone
from app.http.errors import CONTEXT_CODE, ClientGoneError
from app.openai.body import decode_body
from app.openai.schema import expect_served
from app.openai.text_routes import TokenId, TokenIds, check_ids
from app.ws.protocol import Hello
from gpu import Interventions, InterventionSpan, InvalidRequest, LoraStrength
from gpu.inspection.requests import Answer, Embedding, Pooling

MAX_INPUTS = 2048
"""Texts of one request, as with OpenAI."""
MAX_ASKED = 2
"""Questions of one request that the engine has at once: one to answer, and one to go on with."""
POLL_SECONDS = 0.1
"""Interval at which the connection of the client is checked."""

Vector = npt.NDArray[np.float32]


class InputTooLongError(InvalidRequest):
    """A text has more tokens than the context holds."""

    code = CONTEXT_CODE


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`input`: a text, token ids, or a list of either.

    dimensions  keep the first numbers of each vector, and scale them to length 1 again
    pooling     an extension: "mean" over all tokens instead of the last one's state
    user        ignored: it never changes the answer
    """

    input: str | list[TokenId | str | TokenIds]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    pooling: Pooling = "last"
    user: str | None = None

    def texts(self) -> Sequence[str | list[int]]:
        """Return the inputs. Raises `InvalidRequest` for an empty or mixed list."""
        if isinstance(self.input, str):
            return [self.input]
        kinds = {type(one) for one in self.input}
        if kinds == {int}:
            return [[one for one in self.input if isinstance(one, int)]]
        if len(kinds) != 1:
            got = "an empty list" if not kinds else "a list that mixes these"
            raise InvalidRequest(
                f"input must be a text, a list of texts, token ids, or a list of lists of token "
                f"ids, but {got} came",
                "input",
            )
        if len(self.input) > MAX_INPUTS:
            raise InvalidRequest(
                f"input has {len(self.input):,} texts, but a request may have {MAX_INPUTS:,}; send "
                "several requests",
                "input",
            )
        return [one for one in self.input if not isinstance(one, int)]

    def ids(self, tokenizer: Tokenizer, hello: Hello) -> list[list[int]]:
        """Return the token ids of each text. Raises `InvalidRequest`, and `InputTooLongError`."""
        return [_ids(tokenizer, hello, text, f"input[{i}]") for i, text in enumerate(self.texts())]

    def questions(self, tokenizer: Tokenizer, hello: Hello) -> list[Embedding]:
        """Return a question for each text. Raises what `ids` and `expect_served` raise."""
        spans: tuple[InterventionSpan, ...] = ()
        if self.model is not None and self.model != hello.model.name:
            expect_served(self.model, hello.model)
            adapter = Interventions(loras=(LoraStrength(self.model, 1.0),))
            spans = (InterventionSpan(0, adapter),)
        return [Embedding(ids, self.pooling, spans) for ids in self.ids(tokenizer, hello)]

    def check_dimensions(self, size: int) -> None:
        """Raise `InvalidRequest` unless vectors of `size` numbers have so many dimensions."""
        if self.dimensions is not None and self.dimensions > size:
            raise InvalidRequest(
                f"dimensions must be from 1 to {size}, the size of this model's vectors, but got "
                f"{self.dimensions}",
                "dimensions",
            )

    def vector(self, pooled: Vector) -> msgspec.Raw:
        """Return the vector of an answer: cut, scaled to length 1, as JSON, which is smaller than
        Python's numbers are."""
        kept = pooled[: self.dimensions].astype(np.float64)
        length = math.sqrt(float(kept @ kept)) or 1.0
        scaled = (kept / length).astype("<f4")
        base64_wanted = self.encoding_format == "base64"
        encoded = base64.b64encode(scaled.tobytes()).decode() if base64_wanted else scaled.tolist()
        return msgspec.Raw(msgspec.json.encode(encoded))


def register(app: Flask, engine: EngineClient) -> None:
    """Add the route."""

    @app.post("/v1/embeddings")
    def embeddings() -> Response:
        hello = engine.require_ready()
        body = decode_body(EmbeddingRequest)
        body.check_dimensions(hello.model.hidden_size)
        questions = body.questions(engine.tokenizer, hello)
        with place(engine):
            answers = ask_in_turn(engine, questions, client_gone())
            vectors = [body.vector(answer["vector"]) for answer in answers]
        n_tokens = sum(len(question.ids) for question in questions)
        answer = _answer(body.model or hello.model.name, vectors, n_tokens)
        return Response(msgspec.json.encode(answer), mimetype="application/json")


def ask_in_turn(
    engine: EngineClient, questions: Sequence[Embedding], gone: Callable[[], bool]
) -> Iterator[Answer]:
    """Yield the answers in order, with `MAX_ASKED` questions under way. At the end, also if the
    client disconnects (`gone`) or a question fails, those under way are cancelled and the engine
    forgets who asked."""
    asker, waiting = next(ASKER_IDS), deque(questions)
    asked: deque[Future[Answer]] = deque()
    try:
        while waiting or asked:
            while waiting and len(asked) < MAX_ASKED:
                asked.append(engine.inspect(waiting.popleft(), asker))
            yield _result(asked[0], gone)
            asked.popleft()
    finally:
        engine.cancel_questions(asker)


def _result(future: Future[Answer], gone: Callable[[], bool]) -> Answer:
    """Wait for an answer. Raises `ClientGoneError` if the client disconnects meanwhile."""
    while not wait([future], POLL_SECONDS).done:
        if gone():
            raise ClientGoneError
    return future.result()


def _ids(tokenizer: Tokenizer, hello: Hello, text: str | list[int], param: str) -> list[int]:
    if isinstance(text, str):
        ids = tokenizer.encode(text)
    else:
        check_ids(text, hello.model.vocab_size, param)
        ids = text
    context = hello.limits.context
    if not ids:
        raise InvalidRequest(f"{param} has no tokens; give at least one", param)
    if len(ids) > context:
        raise InputTooLongError(
            f"{param} has {len(ids)} tokens, but the context holds {context}; shorten it by at "
            f"least {len(ids) - context} tokens or start with a larger --context",
            param,
        )
    return ids


def _answer(model: str, vectors: Sequence[msgspec.Raw], n_tokens: int) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
