"""`POST /v1/embeddings`: vectors of texts, for OpenAI clients.

An embedding model gives its own: texts are cut, pooled and scaled as in sentence-transformers.
Without one, or if a request names the model that writes, a vector is that model's last hidden
states, after the final norm, pooled and scaled to length 1. The default `pooling` is "last", as in
vLLM for decoder models: only the last token has seen the whole text. Texts are then read as
/v1/completions reads a prompt, and share its prefix cache.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from flask import Flask, Response

from app.engine_client import EngineClient, Tokenizer, UnavailableError
from app.http.client_limits import place, salted
from app.http.disconnect import client_gone
from app.http.questions import ask_in_turn
from app.openai.body import decode_body
from app.openai.inputs import InputTooLongError, check_ids, expect_fits, input_ids, inputs_of
from app.openai.long_requests import turn_to_read
from app.openai.schema import CacheSalt, expect_served
from app.openai.text_routes import TokenId, TokenIds
from app.prompt.encoder_texts import EncoderInputs, EncoderTexts
from app.protocol.messages import Hello
from gpu import EmbeddingInfo, Interventions, InterventionSpan, InvalidRequest, LoraStrength
from gpu.inspection.requests import MAX_ENCODED, Embedding, Encode, Pooling

Vector = npt.NDArray[np.float32]
Questions = Sequence[Embedding] | Sequence[Encode]


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`input`: a text, token ids, or a list of either.

    model        the embedding model, if there is one, and else the model that writes
    dimensions   keep the first numbers of each vector, and scale them to length 1 again
    pooling      an extension for the model that writes: "mean" over all tokens instead of the last
                 one's state
    prompt_name  an extension for embedding models, as in sentence-transformers and TEI: the name of
                 the text to put in front of each
    cache_salt   as for runs
    user         ignored: it never changes the answer
    """

    input: str | list[TokenId | str | TokenIds]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    pooling: Pooling | None = None
    prompt_name: str | None = None
    cache_salt: CacheSalt | None = None
    user: str | None = None

    # ---- of the model that writes -----------------------------------------------------------

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
        if self.prompt_name is not None:
            raise InvalidRequest(
                f"prompt_name is for embedding models, and {hello.model.name} is not one; leave "
                "prompt_name out",
                "prompt_name",
            )
        spans: tuple[InterventionSpan, ...] = ()
        if self.model is not None and self.model != hello.model.name:
            expect_served(self.model, hello.model)
            adapter = Interventions(loras=(LoraStrength(self.model, 1.0),))
            spans = (InterventionSpan(0, adapter),)
        salt = self.cache_salt or ""
        return [
            Embedding(ids, self.pooling or "last", spans, cache_salt=salt)
            for ids in self.ids(tokenizer, hello)
        ]

    # ---- of an embedding model --------------------------------------------------------------

    def encoder_questions(self, texts: EncoderTexts, info: EmbeddingInfo) -> list[Encode]:
        """Return questions for `MAX_ENCODED` texts each. Raises `InvalidRequest`, and
        `InputTooLongError` for token ids, which are not cut."""
        if self.pooling is not None:
            raise InvalidRequest(
                f"the pooling of {info.name} is {info.pooling}, as in its folder; leave pooling "
                "out",
                "pooling",
            )
        prompt, given = texts.prompt(self.prompt_name), inputs_of(self.input, "input")
        strings = [one for one in given if isinstance(one, str)]
        encoded = iter(texts.encode(strings, prompt, info.max_tokens))
        found = [
            next(encoded) if isinstance(one, str) else _checked(one, info, f"input[{i}]")
            for i, one in enumerate(given)
        ]
        return [Encode(found[at : at + MAX_ENCODED]) for at in range(0, len(found), MAX_ENCODED)]

    # ---- the answer -------------------------------------------------------------------------

    def check_dimensions(self, size: int) -> None:
        """Raise `InvalidRequest` unless vectors of `size` numbers have so many dimensions."""
        if self.dimensions is not None and self.dimensions > size:
            raise InvalidRequest(
                f"dimensions must be from 1 to {size}, the size of this model's vectors, but got "
                f"{self.dimensions}",
                "dimensions",
            )

    def vector(self, pooled: Vector, *, normalize: bool) -> msgspec.Raw:
        """Return the vector of an answer: cut, scaled to length 1 unless it keeps its own, as JSON,
        which is smaller than Python's numbers are."""
        kept = pooled[: self.dimensions].astype(np.float64)
        length = math.sqrt(float(kept @ kept)) or 1.0
        scaled = (kept / length if normalize or self.dimensions else kept).astype("<f4")
        base64_wanted = self.encoding_format == "base64"
        encoded = base64.b64encode(scaled.tobytes()).decode() if base64_wanted else scaled.tolist()
        return msgspec.Raw(msgspec.json.encode(encoded))


def _checked(ids: list[int], info: EmbeddingInfo, param: str) -> list[int]:
    """Return the token ids of a text for an embedding model, special ones included."""
    check_ids(ids, info.vocab_size, param)
    if not ids:
        raise InvalidRequest(f"{param} has no tokens; give at least one", param)
    if len(ids) > info.max_tokens:
        raise InputTooLongError(
            f"{param} has {len(ids)} tokens, but {info.name} takes {info.max_tokens}; shorten it, "
            "or send it as text, which is cut to fit",
            param,
        )
    return ids


def register(app: Flask, engine: EngineClient, inputs: EncoderInputs) -> None:
    """Add the route. `inputs`: the texts of the engine's embedding model, if it has one."""

    @app.post("/v1/embeddings")
    def embeddings() -> Response:
        body = decode_body(EmbeddingRequest)
        hello, tokenizer, texts = engine.require_ready(), engine.tokenizer, inputs.embedding
        info = hello.embedding
        if texts is not None and info is not None and body.model in (None, info.name):
            body.check_dimensions(info.hidden_size)
            with turn_to_read(engine):
                asked = body.encoder_questions(texts, info)
            n_tokens = sum(len(ids) for question in asked for ids in question.texts)
            if inputs.embedding is not texts:
                raise UnavailableError("the embedding model was changed meanwhile; send it again")
            with place(engine):
                answers = ask_in_turn(engine, asked, client_gone())
                found = [vector for answer in answers for vector in answer["vectors"]]
            vectors = [body.vector(vector, normalize=info.normalize) for vector in found]
            return _answer(info.name, vectors, n_tokens)
        if hello.upstream is not None:
            raise InvalidRequest(
                "embeddings are not passed on to an upstream server; ask for them at "
                f"{hello.upstream.url}"
            )
        body.check_dimensions(hello.model.hidden_size)
        with turn_to_read(engine):
            questions = [salted(one) for one in body.questions(tokenizer, hello)]
        engine.expect_tokenizer(tokenizer)
        with place(engine):
            answers = ask_in_turn(engine, questions, client_gone())
            vectors = [body.vector(answer["vector"], normalize=True) for answer in answers]
        n_tokens = sum(len(question.ids) for question in questions)
        return _answer(body.model or hello.model.name, vectors, n_tokens)


def _answer(model: str, vectors: Sequence[msgspec.Raw], n_tokens: int) -> Response:
    data = [
        {"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    answer = {"object": "list", "data": data, "model": model, "usage": usage}
    return Response(msgspec.json.encode(answer), mimetype="application/json")
