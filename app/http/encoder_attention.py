"""`/api/encoder-attention`: which tokens attend to which in the embedding model.

POST /api/encoder-attention   `{"text": …}`, answered with `EncoderAttentionAnswer`.
"""

from __future__ import annotations

import time

import msgspec
import numpy as np
import numpy.typing as npt
from flask import Flask, Response

from app.engine_client import EngineClient
from app.http.client_limits import place
from app.http.disconnect import client_gone
from app.http.json_bodies import answer, read_body
from app.http.questions import ask_in_turn
from app.prompt.encoder_texts import EncoderInputs
from gpu import InvalidRequest
from gpu.inspection.requests import EncoderAttention

EXAMPLE = '{"text": "The cat sat on the mat."}'
MAX_TOKENS = 64
"""Most tokens of a text, special ones included; a longer text is cut."""
MAX_CHARS = 2000
STEP = 1e-6
"""Weights are rounded to multiples of it; only weights that the mask hides are 0."""


class TextRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


class EncoderToken(msgspec.Struct, frozen=True):
    """Token of a text; `piece`: as the tokenizer writes it."""

    id: int
    piece: str


class EncoderAttentionAnswer(msgspec.Struct, frozen=True):
    """Attention of a text of n tokens.

    weights  (n_layers, n, n): from each token to each, mean over the heads; each row sums to 1
    ms       time of the question, with the wait for other work
    """

    model: str
    n_heads: int
    tokens: tuple[EncoderToken, ...]
    weights: list[list[list[float]]]
    ms: float


def register(app: Flask, engine: EngineClient, inputs: EncoderInputs) -> None:
    """Add the route. `inputs`: the texts of the engine's embedding model, if it has one."""

    @app.post("/api/encoder-attention")
    def encoder_attention() -> Response:
        asked = read_body(TextRequest, EXAMPLE, "text")
        info, texts = engine.require_ready().embedding, inputs.embedding
        if texts is None or info is None:
            raise InvalidRequest(
                "there is no embedding model; to load one, press the model’s name at the top of "
                "the page, then “Change the model…”, or start the server with --embedding-model",
                "text",
            )
        if not 1 <= len(asked.text) <= MAX_CHARS:
            raise InvalidRequest(
                f"expected a text of 1 to {MAX_CHARS:,} characters, but got {len(asked.text):,}",
                "text",
            )
        [ids] = texts.encode([asked.text], "", min(MAX_TOKENS, info.max_tokens))
        began = time.monotonic()
        with place(engine):
            [found] = ask_in_turn(engine, [EncoderAttention(ids)], client_gone())
        weights = found["weights"]
        pieces = tuple(EncoderToken(id, texts.tokenizer.piece(id)) for id in ids)
        ms = 1000 * (time.monotonic() - began)
        return answer(
            EncoderAttentionAnswer(
                info.name, weights.shape[1], pieces, mean_of_heads(weights).tolist(), ms
            )
        )


def mean_of_heads(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the mean over the heads (n_layers, …) of weights (n_layers, n_heads, …), `rounded`."""
    return rounded(weights.mean(axis=1, dtype=np.float64))


def rounded(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return weights in multiples of `STEP`; what is more than 0 stays more."""
    return np.where(weights > 0, STEP * np.maximum(np.round(weights / STEP), 1), 0.0).round(6)
