"""Log-probabilities in responses of the OpenAI-compatible API."""

from __future__ import annotations

import math
from typing import Any

from msgspec import UNSET

from app.engine_client import Tokenizer
from gpu import SamplingParams
from gpu.events import Token
from gpu.inspection.requests import Answer

MIN_LOGPROB = -9999.0
"""Log-probability of a probability that is zero in float32: JSON has no infinity."""


def top_logprobs(token: Token, params: SamplingParams, n_top: int) -> list[tuple[int, str, float]]:
    """Return (id, text, logprob) of the likeliest tokens at temperature 1.

    The probabilities of candidates are p = softmax(logits / T). So logprob_i = logprob_c + T (ln
    p_i − ln p_c), where c is the chosen token, whose logprob is known; T is 1 if the run is greedy.
    Those of an upstream are at temperature 1 already.
    """
    if token.mass is None or token.probability is None:
        return [(c.id, c.text, _log(c.before)) for c in token.candidates[:n_top]]
    temperature = 1.0 if params.is_greedy else params.temperature
    chosen = _before_filters(token, token.probability * token.mass[0], params)

    def logprob(before: float) -> float:
        if before <= 0 or chosen <= 0:
            return MIN_LOGPROB
        return min(0.0, token.logprob + temperature * (math.log(before) - math.log(chosen)))

    return [(c.id, c.text, logprob(c.before)) for c in token.candidates[:n_top]]


def _before_filters(token: Token, drawn: float, params: SamplingParams) -> float:
    """Return the probability of the chosen token before filters and watermark. `drawn`: that with
    which it was drawn, as a share of all tokens."""
    for candidate in token.candidates:
        if candidate.id == token.id:
            return candidate.before
    mark = token.watermark
    if mark is UNSET:
        return drawn
    if params.is_greedy:  # drawn with 1; the candidates are the model's own, of those allowed
        return math.exp(token.logprob) / (
            1.0 if token.allowed is UNSET else token.allowed.probability
        )
    gain = math.exp(params.watermark_bias)
    return (
        drawn * (mark.probability * gain + 1.0 - mark.probability) / (gain if mark.green else 1.0)
    )


def _log(probability: float) -> float:
    return min(0.0, math.log(probability)) if probability > 0 else MIN_LOGPROB


class TextLogprobs:
    """Builder of `logprobs` for /v1/completions: parallel lists, with offsets into the text."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, n_top: int, offset: int):
        self._tokenizer = tokenizer
        self._params = params
        self.n_top = n_top
        self._offset = offset

    def of(self, tokens: list[Token]) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token.text)
        return {
            "tokens": [self._tokenizer.piece(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens] if self.n_top else None,
            "text_offset": offsets,
        }

    def _top(self, token: Token) -> dict[str, float]:
        """Return the log-probabilities of the likeliest tokens and, as OpenAI documents, of the
        token itself. Of tokens with the same text, such as parts of characters, the likeliest
        counts, or the token itself."""
        top: dict[str, float] = {}
        for _, text, logprob in top_logprobs(token, self._params, self.n_top):
            top.setdefault(text, logprob)
        return top | {self._tokenizer.piece(token.id): token.logprob}


def prompt_logprobs(
    tokenizer: Tokenizer, ids: list[int], offsets: list[int], losses: Answer | None, n_top: int
) -> dict[str, Any]:
    """Return the `logprobs` of a prompt's tokens in the form of `TextLogprobs`: the first one has
    none, because nothing is before it. `losses`: of the others; None if there are none."""
    pieces = [tokenizer.piece(id) for id in ids]
    own: list[float | None] = [None]
    top: list[dict[str, float] | None] = [None]
    if losses is not None:
        own += [max(MIN_LOGPROB, value) for value in losses["logprob"].tolist()]
        likeliest = zip(losses["top_ids"].tolist(), losses["top_logprobs"].tolist(), strict=True)
        for piece, value, (top_ids, values) in zip(pieces[1:], own[1:], likeliest, strict=True):
            found: dict[str, float] = {}
            for id, logprob in zip(top_ids[:n_top], values, strict=False):
                found.setdefault(tokenizer.piece(id), max(MIN_LOGPROB, logprob))
            top.append({**found, piece: value or 0.0})
    return {
        "tokens": pieces,
        "token_logprobs": own,
        "top_logprobs": top if n_top else None,
        "text_offset": offsets,
    }


def joined(first: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """Return the lists of `TextLogprobs` of two texts, one after the other."""
    return {name: first[name] and first[name] + then[name] for name in first}


class ChatLogprobs:
    """Builder of `logprobs` for /v1/chat/completions: one object per token."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, n_top: int):
        self._tokenizer = tokenizer
        self._params = params
        self.n_top = n_top

    def of(self, tokens: list[Token]) -> dict[str, Any]:
        return {"content": [self._token(token) for token in tokens], "refusal": None}

    def _token(self, token: Token) -> dict[str, Any]:
        top = top_logprobs(token, self._params, self.n_top)
        own = self._entry(token.id, self._tokenizer.piece(token.id), token.logprob)
        return {**own, "top_logprobs": [self._entry(*entry) for entry in top]}

    def _entry(self, id: int, text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(self._tokenizer.token_bytes(id))}
