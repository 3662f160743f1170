"""`POST /v1/embeddings`: vectors of texts, for OpenAI clients.

A vector is the model's last hidden states, after the final norm, pooled and scaled to length 1. The
default `pooling` is "last", as in vLLM for decoder models: only the last token has seen the whole
text. Texts are read as /v1/completions reads a prompt, and share its prefix cache.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from flask import Flask, Response

from app.engine_client import EngineClient, Tokenizer
from app.http.client_limits import place, salted
from app.http.disconnect import client_gone
from app.openai.body import decode_body
from app.openai.inputs import expect_fits, input_ids, inputs_of
from app.openai.long_requests import turn_to_read
from app.openai.questions import ask_in_turn
from app.openai.schema import CacheSalt, expect_served
from app.openai.text_routes import TokenId, TokenIds
from app.protocol.messages import Hello
from gpu import Interventions, InterventionSpan, InvalidRequest, LoraStrength
from gpu.inspection.requests import Embedding, Pooling

Vector = npt.NDArray[np.float32]


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`input`: a text, token ids, or a list of either.

    dimensions  keep the first numbers of each vector, and scale them to length 1 again
    pooling     an extension: "mean" over all tokens instead of the last one's state
    cache_salt  as for runs
    user        ignored: it never changes the answer
    """

    input: str | list[TokenId | str | TokenIds]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    pooling: Pooling = "last"
    cache_salt: CacheSalt | None = None
    user: str | None = None

    def ids(self, tokenizer: Tokenizer, hello: Hello) -> list[list[int]]:
        """Return the token ids of each text. Raises `InvalidRequest`, and `InputTooLongError`."""
        found = []
        for i, text in enumerate(inputs_of(self.input, "input")):
            ids = input_ids(tokenizer, hello.model.vocab_size, text, f"input[{i}]")
            expect_fits(ids, hello.limits.context, f"input[{i}]")
            found.append(ids)
        return found

    def questions(self, tokenizer: Tokenizer, hello: Hello) -> list[Embedding]:
        """Return a question for each text. Raises what `ids` and `expect_served` raise."""
        spans: tuple[InterventionSpan, ...] = ()
        if self.model is not None and self.model != hello.model.name:
            expect_served(self.model, hello.model)
            adapter = Interventions(loras=(LoraStrength(self.model, 1.0),))
            spans = (InterventionSpan(0, adapter),)
        salt = self.cache_salt or ""
        return [
            Embedding(ids, self.pooling, spans, cache_salt=salt)
            for ids in self.ids(tokenizer, hello)
        ]

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
        with turn_to_read(engine):
            questions = [salted(one) for one in body.questions(engine.tokenizer, hello)]
        with place(engine):
            answers = ask_in_turn(engine, questions, client_gone())
            vectors = [body.vector(answer["vector"]) for answer in answers]
        n_tokens = sum(len(question.ids) for question in questions)
        answer = _answer(body.model or hello.model.name, vectors, n_tokens)
        return Response(msgspec.json.encode(answer), mimetype="application/json")


def _answer(model: str, vectors: Sequence[msgspec.Raw], n_tokens: int) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
