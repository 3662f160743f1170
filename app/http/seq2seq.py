"""`/api/seq2seq`: what the encoder-decoder writes for a text, and which tokens attend to
which.

POST /api/seq2seq   `{"text": …}`, with `max_tokens` if fewer are to be written than there is room
                    for; answered with `Seq2SeqAnswer`.
"""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
import numpy as np
from flask import Flask, Response
from msgspec import Meta

from app.engine_client import EngineClient
from app.http.client_limits import place
from app.http.disconnect import client_gone
from app.http.encoder_attention import MAX_CHARS, EncoderToken, mean_of_heads, rounded
from app.http.json_bodies import answer, read_body
from app.http.questions import ask_in_turn
from app.prompt.encoder_texts import EncoderTexts
from gpu import EncoderDecoderInfo, InvalidRequest
from gpu.inspection.requests import Seq2Seq

EXAMPLE = '{"text": "translate English to German: The house is wonderful."}'


class Seq2SeqRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    max_tokens: Annotated[int, Meta(ge=1)] | None = None


class WrittenToken(msgspec.Struct, frozen=True):
    """Token that the decoder wrote. `probability`: after those before it; `ms`: time it took."""

    id: int
    piece: str
    probability: float
    ms: float


class Seq2SeqAnswer(msgspec.Struct, frozen=True):
    """A text of n tokens, and what was written for it, m tokens.

    tokens         those of the text
    start          the token that the decoder reads first; then it reads what it wrote
    text           what was written, without special tokens
    ended          the last token ends the text; false: there was no room for more
    encoder        (n_layers, n, n): from each token of the text to each, mean over the heads
    decoder        (n_decoder_layers, m, m): from each token that the decoder reads to each, mean
                   over the heads
    cross          (n_decoder_layers, n_heads, m, n): from each token that it reads to the text
    encode_ms      time of the encoder
    ms             time of the question, with the wait for other work
    """

    model: str
    tokens: tuple[EncoderToken, ...]
    start: EncoderToken
    written: tuple[WrittenToken, ...]
    text: str
    ended: bool
    encoder: list[list[list[float]]]
    decoder: list[list[list[float]]]
    cross: list[list[list[list[float]]]]
    encode_ms: float
    ms: float


def register(app: Flask, engine: EngineClient, texts: EncoderTexts | None) -> None:
    """Add the route. `texts`: those of the engine's encoder-decoder, if it has one."""

    @app.post("/api/seq2seq")
    def seq2seq() -> Response:
        asked = read_body(Seq2SeqRequest, EXAMPLE, "text")
        info = engine.require_ready().encoder_decoder
        if texts is None or info is None:
            raise InvalidRequest(
                "there is no encoder-decoder; start the server with --encoder-decoder-model", "text"
            )
        ids = _ids(asked.text, texts, info)
        most = asked.max_tokens or info.max_written
        began = time.monotonic()
        with place(engine):
            [found] = ask_in_turn(engine, [Seq2Seq(ids, most)], client_gone())
        piece = texts.tokenizer.piece
        written = found["written"].tolist()
        return answer(
            Seq2SeqAnswer(
                model=info.name,
                tokens=tuple(EncoderToken(id, piece(id)) for id in ids),
                start=EncoderToken(info.start_id, piece(info.start_id)),
                written=tuple(
                    WrittenToken(id, piece(id), probability, ms)
                    for id, probability, ms in zip(
                        written, found["probabilities"].tolist(), found["step_ms"].tolist(),
                        strict=True,
                    )
                ),
                text=texts.tokenizer.decode(written),
                ended=found.info["ended"],
                encode_ms=found.info["encode_ms"],
                ms=1000 * (time.monotonic() - began),
                encoder=mean_of_heads(found["encoder"]).tolist(),
                decoder=mean_of_heads(found["decoder"]).tolist(),
                cross=rounded(found["cross"].astype(np.float64)).tolist(),
            )
        )  # fmt: skip


def _ids(text: str, texts: EncoderTexts, info: EncoderDecoderInfo) -> list[int]:
    """Return the ids of a text. Raises InvalidRequest for one that is empty or too long."""
    if not 1 <= len(text) <= MAX_CHARS:
        raise InvalidRequest(
            f"expected a text of 1 to {MAX_CHARS:,} characters, but got {len(text):,}", "text"
        )
    [ids] = texts.encode([text], "", MAX_CHARS)
    if len(ids) > info.max_tokens:
        raise InvalidRequest(
            f"the text has {len(ids)} tokens, and the encoder reads at most {info.max_tokens}; "
            "shorten it",
            "text",
        )
    return ids
