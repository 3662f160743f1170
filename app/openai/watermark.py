"""`POST /watermark`: look for a watermark in a text, as transformers' `WatermarkDetector` does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from flask import Flask, Response

from app.engine_client import EngineClient, Tokenizer
from app.openai.body import decode_body
from app.openai.inputs import check_ids
from app.openai.long_requests import turn
from app.openai.text_routes import TokenIds
from gpu import Greenlists, InvalidRequest, WatermarkConfig, detect_watermark

MAX_TOKENS = 8192
MAX_WORK = MAX_TOKENS * 49_152
"""Most tokens of a text times those of the vocabulary: a greenlist takes about 15 ns for each of
the vocabulary, so the longest text some seconds."""
MAX_CONTEXT_WIDTH = 16
DEFAULTS = WatermarkConfig()


class WatermarkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of `content`, a text, and `tokens`, its ids. The next four are transformers'
    `WatermarkingConfig` without the bias, which the detector need not know; then its arguments.

    window  tokens of the windows for which z is given, too
    """

    content: str | None = None
    tokens: TokenIds | None = None
    model: str | None = None
    greenlist_ratio: float = DEFAULTS.greenlist_ratio
    hashing_key: int = DEFAULTS.hashing_key
    seeding_scheme: Literal["lefthash", "selfhash"] = "lefthash"
    context_width: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONTEXT_WIDTH)] = 1
    z_threshold: float = 3.0
    ignore_repeated_ngrams: bool = False
    window: Annotated[int, msgspec.Meta(ge=2, le=MAX_TOKENS)] = 50

    def ids(self, tokenizer: Tokenizer, vocab_size: int) -> list[int]:
        """Return the tokens of the text. Raises InvalidRequest."""
        if (self.content is None) == (self.tokens is None):
            raise InvalidRequest("expected exactly one of content and tokens", "content")
        if not vocab_size:
            raise InvalidRequest(
                "the vocabulary of the upstream's model, which greenlists are drawn from, is not "
                "known here; start this server with the --tokenizer of that model",
                "content" if self.tokens is None else "tokens",
            )
        if self.tokens is None:
            ids = tokenizer.encode(self.content or "", False, False)
        else:
            check_ids(self.tokens, vocab_size)
            ids = self.tokens
        most = min(MAX_TOKENS, MAX_WORK // vocab_size)
        if len(ids) > most:
            raise InvalidRequest(
                f"the text has {len(ids):,} tokens, but at most {most:,} are accepted with a "
                f"vocabulary of {vocab_size:,}; send a part of it",
                "content",
            )
        return ids

    def config(self) -> WatermarkConfig:
        """Return what decides the greenlists. Raises InvalidRequest."""
        config = WatermarkConfig(
            self.greenlist_ratio, self.hashing_key, self.seeding_scheme, self.context_width
        )
        config.check()
        return config


def register(app: Flask, engine: EngineClient) -> None:
    """Add the route."""

    @app.post("/watermark")
    def watermark() -> Response:
        hello = engine.require_ready()
        with turn(engine):
            body = decode_body(WatermarkRequest)
            ids = body.ids(engine.tokenizer, hello.model.vocab_size)
            answer = _found(body, ids, engine.tokenizer, hello.model.vocab_size)
        return Response(msgspec.json.encode(answer), mimetype="application/json")


def _found(
    body: WatermarkRequest, ids: list[int], tokenizer: Tokenizer, vocab_size: int
) -> dict[str, Any]:
    found = detect_watermark(
        ids,
        body.config(),
        Greenlists(vocab_size),
        z_threshold=body.z_threshold,
        ignore_repeated_ngrams=body.ignore_repeated_ngrams,
        window=body.window,
    )
    numbers = msgspec.to_builtins(found)
    by_token = zip(ids, numbers.pop("green"), numbers.pop("window_z"), strict=True)
    tokens = [
        {"id": id, "piece": tokenizer.piece(id), "green": green, "window_z": z}
        for id, green, z in by_token
    ]
    return {**numbers, "tokens": tokens}
