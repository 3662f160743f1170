"""Validation of requests against the loaded model.

This is the only place that checks a request: its settings, token ids, scheduled updates and
interventions. The WebSocket and the HTTP API check only that a message can be read and which of its
fields go together, so no text is tokenised twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from gpu.errors import ContextExceeded, InvalidRequest
from gpu.interventions.messages import (
    MAX_TEXT_TOKENS,
    EncodedInterventions,
    Interventions,
    Sizes,
    check_spans,
    encode_interventions,
    encode_spans,
)
from gpu.interventions.resolved import RunInterventions
from gpu.kv.context_shift import LEAST_SHIFTABLE
from gpu.pace import check_pace
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import check_updates, encode_updates


class ModelSizes(Sizes, Protocol):
    """Sizes of a model that a request must respect."""

    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RequestValidator:
    """Checks requests for one model. `context`: tokens a text may have. `loras`: names of the
    loaded adapters. `tokenize`: encodes the texts of interventions as plain prompts.
    `not_shiftable`: why cached tokens of this model cannot be moved; None: they can."""

    sizes: ModelSizes
    context: int
    loras: Collection[str]
    tokenize: Callable[[str], list[int]]
    not_shiftable: str | None = None
    prefix_cache: bool = True

    def validate(self, request: Request) -> RunInterventions:
        """Return the request's interventions with their texts as token ids. Raises InvalidRequest
        and ContextExceeded."""
        request.params.validate()
        check_biased_ids(request.params, self.sizes.vocab_size)
        self.check_ids(request.ids)
        self.check_n_keep(request.n_keep)
        if len(request.ids) >= self.context and request.n_keep is None:
            raise ContextExceeded(len(request.ids), self.context)
        check_updates(request.updates, request.params)
        check_pace(request.pace)
        _check_written(request)
        self.check_cache_reuse(request.cache_reuse)
        n_prompt = len(request.ids) - request.n_written
        updates = encode_updates(request.updates, request.interventions, self.encode)
        check_spans(request.spans, request.interventions, n_prompt - 1)
        spans = encode_spans(request.spans, lambda one: self.encode(one, n_prompt, "reached"))
        first = self.encode(request.interventions, n_prompt)
        return RunInterventions((first, *updates), n_prompt, spans)

    def encode(
        self, interventions: Interventions, n_prompt: int | None = None, param: str = "reach"
    ) -> EncodedInterventions:
        """Return `interventions` with their texts as token ids. `n_prompt`: tokens that patches may
        name; None: any. `param`: the request's field that errors name. Raises InvalidRequest."""
        return encode_interventions(
            interventions,
            self.sizes,
            self.tokenize,
            param=param,
            n_prompt=n_prompt,
            most=min(MAX_TEXT_TOKENS, self.context),
            loras=self.loras,
        )

    def check_cache_reuse(self, least: int | None) -> None:
        """Raise InvalidRequest for a `Request.cache_reuse` that the model cannot do."""
        if least is not None and least < 0:
            raise InvalidRequest(
                f"cache_reuse must be 0 (none) or the fewest tokens of a chunk, but got {least}",
                "cache_reuse",
            )
        if least and self.not_shiftable is not None:
            raise InvalidRequest(f"cache_reuse: {self.not_shiftable}; leave it out", "cache_reuse")
        if least and not self.prefix_cache:
            raise InvalidRequest(
                "cache_reuse: the prefix cache is off, so nothing can be found in it; leave it out",
                "cache_reuse",
            )

    def check_n_keep(self, n_keep: int | None) -> None:
        """Raise InvalidRequest for a `Request.n_keep` that model or context cannot do."""
        if n_keep is None:
            return
        if self.not_shiftable is not None:
            raise InvalidRequest(
                f"the context cannot slide: {self.not_shiftable}; choose another "
                "way to go on when the context is full",
                "truncation",
            )
        most = self.context - LEAST_SHIFTABLE
        if not 0 <= n_keep <= most:
            raise InvalidRequest(
                f"a context of {self.context} tokens is too short to slide: "
                f"{n_keep} tokens stay, and {LEAST_SHIFTABLE} others must have room",
                "truncation",
            )

    def check_ids(self, ids: list[int]) -> None:
        """Raise InvalidRequest unless `ids` holds at least one token, all in the vocabulary."""
        if not ids:
            raise InvalidRequest("the prompt is empty; give at least one token", "prompt")
        vocab = self.sizes.vocab_size
        for i, id in enumerate(ids):
            if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab:
                raise InvalidRequest(
                    f"token {i} of the prompt is {id!r}, but ids go from 0 to {vocab - 1}", "prompt"
                )


def check_biased_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidRequest unless the vocabulary has all tokens of `logit_bias`."""
    for each in params.logit_bias:
        if not 0 <= each.id < vocab_size:
            raise InvalidRequest(
                f"logit_bias names token {each.id}, but ids go from 0 to {vocab_size - 1}",
                "logit_bias",
            )


def _check_written(request: Request) -> None:
    """Raise InvalidRequest unless a run can go on after the tokens that were written."""
    n, params = request.n_written, request.params
    for update in request.updates:
        if update.index <= n:
            params = params.updated(update.params)
    most = min(len(request.ids) - 1, params.max_tokens - 1)
    if not 0 <= n <= most:
        raise InvalidRequest(
            f"n_written must be from 0 to {most}, so that there is a prompt and another token may "
            f"follow, but got {n}",
            "n_written",
        )
