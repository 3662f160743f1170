"""Body of the request that an upstream gets for a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.upstream.dialect import MAX_LOGPROBS, Dialect
from app.upstream.tokenizer import TokenIds
from gpu import NO_INTERVENTIONS, SAMPLING_SETTINGS, Grammar, InvalidRequest, Request

NEUTRAL = {s.name: s.declared.neutral for s in SAMPLING_SETTINGS if s.declared.stage}
PENALTIES = [s.name for s in SAMPLING_SETTINGS if s.declared.stage == "penalty"]
OPENAI_SETTINGS = ("top_p", "frequency_penalty", "presence_penalty")
"""Sampling settings of OpenAI's API other than the temperature."""
COMPLETIONS = "/v1/completions"
CHAT_COMPLETIONS = "/v1/chat/completions"


@dataclass(frozen=True)
class BodyWriter:
    """Writes the bodies of one upstream. `model`: its name there. `context`: tokens of one text.
    `logprobs`: it tells log-probabilities."""

    model: str
    dialect: Dialect
    tokens: TokenIds
    context: int
    logprobs: bool = True

    def write(self, request: Request, written: Sequence[int] = ()) -> tuple[str, dict[str, Any]]:
        """Return route and body of a run that goes on after `written`. Raises InvalidRequest for
        what this upstream cannot do."""
        self._refuse(request)
        params = request.params
        n_read = len(request.ids) + len(written)
        left = params.max_tokens - len(written)
        path, prompt = self._prompt([*request.ids, *written])
        body: dict[str, Any] = {
            "model": self.model,
            **prompt,
            **self.dialect.extras,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": params.temperature,
            "seed": self._seed(request, len(written)),
        }
        # Many servers refuse more than fits, and chats may write as much as there is room for.
        if n_read + left < self.context:
            body["max_tokens"] = left
        elif path == COMPLETIONS:
            body["max_tokens"] = max(1, min(left, self.context - n_read))
        if params.stop:
            body["stop"] = list(params.stop)
        for name in OPENAI_SETTINGS:
            # Servers that know their model's recommended settings take those for what is left out;
            # the others have models that refuse these fields.
            if self.dialect.settings or getattr(params, name) != NEUTRAL[name]:
                body[name] = getattr(params, name)
        for name, theirs in self.dialect.settings.items():
            body[theirs] = getattr(params, name)
        if params.logit_bias:
            body["logit_bias"] = {str(each.id): each.bias for each in params.logit_bias}
        if request.cache_salt and self.dialect.cache_salt:
            body["cache_salt"] = request.cache_salt
        if request.grammar is not None:
            body["response_format"] = _response_format(request.grammar)
        return path, body | self._logprobs(request, path)

    def can_go_on(self, request: Request) -> bool:
        """Return whether a run can go on with a text that has begun."""
        return self._messages(request.ids) is None or self.dialect.going_on is not None

    def _messages(self, ids: Sequence[int]) -> list[Any] | None:
        words = self.tokens.words
        return None if words is None else words.messages_of(ids)

    def _prompt(self, ids: list[int]) -> tuple[str, dict[str, Any]]:
        if self.tokens.exact:
            return COMPLETIONS, {"prompt": ids}
        messages = self._messages(ids)
        if messages is None:
            return COMPLETIONS, {"prompt": self.tokens.tokenizer.decode(ids)}
        body: dict[str, Any] = {
            "messages": [{"role": one.role, "content": one.content} for one in messages]
        }
        if messages[-1].role == "assistant":
            if self.dialect.going_on is None:
                raise InvalidRequest(
                    f"this upstream ({self.dialect.name}) cannot go on with an answer that has "
                    "begun; ask again instead"
                )
            body |= self.dialect.going_on
        return CHAT_COMPLETIONS, body

    def _seed(self, request: Request, n_written: int) -> int:
        """Return the seed. A run that goes on gets another one, as the upstream would begin with
        the same random numbers again."""
        params = request.params
        assert params.seed is not None, "drawn when the run began"
        return (params.seed + params.first_index + n_written) % (self.dialect.max_seed + 1)

    def n_top(self, request: Request) -> int:
        """Return how many of the likeliest tokens are asked for. Completions may list one more, the
        token itself."""
        chat = not self.tokens.exact and self._messages(request.ids) is not None
        return MAX_LOGPROBS if chat else self.dialect.n_top

    def _logprobs(self, request: Request, path: str) -> dict[str, Any]:
        if not self.logprobs:
            return {}
        params = request.params
        changed = params.logit_bias or any(getattr(params, n) != NEUTRAL[n] for n in PENALTIES)
        tells_top = self.dialect.penalised_top or not changed
        if path == CHAT_COMPLETIONS:
            return {"logprobs": True, "top_logprobs": MAX_LOGPROBS if tells_top else 0}
        return {"logprobs": self.dialect.n_top if tells_top else 0}

    def _refuse(self, request: Request) -> None:
        """Raise InvalidRequest for what this upstream cannot do."""
        params = request.params
        if request.interventions != NO_INTERVENTIONS or request.spans:
            raise InvalidRequest(
                "an upstream server cannot change heads, layers or adapters while it writes; "
                "remove the interventions",
                "reach",
            )
        known = {*self.dialect.settings, *OPENAI_SETTINGS, "temperature"}
        for name in (*NEUTRAL, "ignore_eos"):
            neutral = NEUTRAL.get(name, False)
            if name not in known and getattr(params, name) != neutral:
                raise InvalidRequest(
                    f"this upstream ({self.dialect.name}) does not know {name}; set it to "
                    f"{json.dumps(neutral)}, which changes nothing",
                    name,
                )
        if params.logit_bias and not self.tokens.exact:
            raise InvalidRequest(
                "logit_bias names token ids, which this server does not know; start it with the "
                "--tokenizer of the upstream's model",
                "logit_bias",
            )


def _response_format(grammar: Grammar) -> dict[str, Any]:
    """Return OpenAI's field for a grammar. Raises InvalidRequest for another than a JSON schema."""
    if grammar.kind != "json_schema" or grammar.n_read:
        raise InvalidRequest(
            "only a JSON schema is passed on to an upstream, and only from the beginning of an "
            "answer; leave the grammar out, or ask the upstream itself",
            "grammar",
        )
    schema = json.loads(grammar.text)
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
