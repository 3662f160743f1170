"""Body of the request that an upstream gets for a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from app.upstream.dialect import Dialect
from app.upstream.tgi import GENERATE_STREAM, generate_body, grammar_of
from app.upstream.tokenizer import TokenIds
from gpu import NO_INTERVENTIONS, SAMPLING_SETTINGS, Grammar, InvalidRequest, Request

NEUTRAL = {s.name: s.declared.neutral for s in SAMPLING_SETTINGS if s.declared.stage}
PENALTIES = [s.name for s in SAMPLING_SETTINGS if s.declared.stage == "penalty"]
OPENAI_SETTINGS = ("top_p", "frequency_penalty", "presence_penalty")
"""Sampling settings of OpenAI's API other than the temperature."""
GRAMMARS = {"json_schema": "a JSON schema", "regex": "a regular expression"}
"""Kinds of grammars that upstreams know."""
FEW_LOGPROBS = 5
"""Most candidates of a token that servers with a lower limit than ours return, such as older
vLLM."""
COMPLETIONS = "/v1/completions"
CHAT_COMPLETIONS = "/v1/chat/completions"


@dataclass(frozen=True)
class BodyWriter:
    """Writes the bodies of one upstream. `model`: its name there. `context`: tokens of one text.
    `logprobs`: it returns log-probabilities."""

    model: str
    dialect: Dialect
    tokens: TokenIds
    context: int
    logprobs: bool = True

    def write(self, request: Request, written: Sequence[int] = ()) -> tuple[str, dict[str, Any]]:
        """Return route and body of a run that goes on after `written`. Raises InvalidRequest for
        what this upstream cannot do."""
        chat = self._is_chat(request)
        self._refuse(request, chat=chat)
        params, ids = request.params, [*request.ids, *written]
        if self.dialect.native and not params.temperature:
            params = replace(params, top_p=1.0)  # TGI draws where there is a filter
        left = params.max_tokens - len(written)
        if self.dialect.native and not chat:
            return GENERATE_STREAM, self._native(request, ids, left, len(written))
        path, prompt = self._prompt(ids)
        body: dict[str, Any] = {
            "model": self.model,
            **prompt,
            **self.dialect.extras,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": params.temperature,
            "seed": self._seed(request, len(written)),
        }
        room = self._room(len(ids), left)
        # Chats may write as much as there is room for.
        if room == left or path == COMPLETIONS:
            body["max_tokens"] = room
        if params.stop:
            body["stop"] = list(params.stop)
        settings = self.dialect.settings_of(chat=chat)
        for name in OPENAI_SETTINGS:
            # Servers that know their model's recommended settings take those for what is left out;
            # the others have models that refuse these fields.
            if settings or getattr(params, name) != NEUTRAL[name]:
                body[name] = getattr(params, name)
        for name, theirs in settings.items():
            body[theirs] = getattr(params, name)
        if params.logit_bias:
            body["logit_bias"] = {str(each.id): each.bias for each in params.logit_bias}
        if request.cache_salt and self.dialect.cache_salt:
            body["cache_salt"] = request.cache_salt
        if request.grammar is not None:
            body |= self._constraint(request.grammar)
        return path, body | self._logprobs(request, path)

    def _native(
        self, request: Request, ids: list[int], left: int, n_written: int
    ) -> dict[str, Any]:
        """Return the body of TGI's own route."""
        text = self.tokens.text_of(ids)
        seed = self._seed(request, n_written)
        room = self._room(len(ids), left)
        body = generate_body(text, request.params, seed, room, self.dialect.n_top)
        if request.grammar is not None:
            grammar = self._constraint(request.grammar)["response_format"]
            body["parameters"]["grammar"] = grammar
        return body

    def _room(self, n_read: int, left: int) -> int:
        """Return how many tokens to ask for: many servers refuse more than fits."""
        if n_read + left < self.context:
            return left
        return max(1, min(left, self.context - n_read))

    def can_go_on(self, request: Request) -> bool:
        """Return whether a run can go on with a text that has begun."""
        return not self._is_chat(request) or self.dialect.going_on is not None

    def _is_chat(self, request: Request) -> bool:
        return self._messages(request.ids) is not None

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
        most = self.dialect.max_seed
        seed = (params.seed + params.first_index + n_written) % (most + 1)
        return seed if seed or self.dialect.has_seed_0 else most

    def n_top(self, request: Request) -> int:
        """Return how many of the likeliest tokens are asked for. Completions may list one more, the
        token itself."""
        return self.dialect.n_chat_top if self._is_chat(request) else self.dialect.n_top

    def with_fewer_logprobs(self) -> BodyWriter | None:
        """Return the writer for an upstream that refused the log-probabilities: it asks for fewer
        candidates, or else for no log-probabilities. None: it asked for none."""
        if not self.logprobs:
            return None
        known = self.dialect
        if max(known.n_top, known.n_chat_top) <= FEW_LOGPROBS:
            return dataclasses.replace(self, logprobs=False)
        n_top, n_chat_top = (min(n, FEW_LOGPROBS) for n in (known.n_top, known.n_chat_top))
        limited = dataclasses.replace(known, n_top=n_top, n_chat_top=n_chat_top)
        return dataclasses.replace(self, dialect=limited)

    def _logprobs(self, request: Request, path: str) -> dict[str, Any]:
        if not self.logprobs:
            return {}
        params = request.params
        changed = params.logit_bias or any(getattr(params, n) != NEUTRAL[n] for n in PENALTIES)
        tells_top = self.dialect.penalised_top or not changed
        if path == CHAT_COMPLETIONS:
            return {"logprobs": True, "top_logprobs": self.n_top(request) if tells_top else 0}
        return {"logprobs": self.dialect.n_top if tells_top else 0}

    def _refuse(self, request: Request, *, chat: bool) -> None:
        """Raise InvalidRequest for what this upstream cannot do."""
        params = request.params
        if request.interventions != NO_INTERVENTIONS or request.spans:
            raise InvalidRequest(
                "an upstream server cannot change heads, layers or adapters while it writes; "
                "remove the interventions",
                "reach",
            )
        if request.n_keep is not None:
            raise InvalidRequest(
                "the context cannot slide: an upstream server moves no keys; choose another way to "
                "go on when the context is full",
                "truncation",
            )
        known = {*self.dialect.settings_of(chat=chat), *OPENAI_SETTINGS, "temperature"}
        known -= {*self.dialect.unknown}
        for name in (*NEUTRAL, "ignore_eos"):
            neutral = NEUTRAL.get(name, False)
            if name not in known and getattr(params, name) != neutral:
                where, or_else = "", ""
                if chat and name in self.dialect.settings:
                    where = " in a chat"
                    or_else = ", or start this server with the --tokenizer of its model"
                raise InvalidRequest(
                    f"this upstream ({self.dialect.name}) does not know {name}{where}; set it to "
                    f"{json.dumps(neutral)}, which changes nothing{or_else}",
                    name,
                )
        if params.logit_bias and self.dialect.native:
            raise InvalidRequest(
                f"this upstream ({self.dialect.name}) does not know logit_bias; leave it out",
                "logit_bias",
            )
        if params.logit_bias and not self.tokens.exact:
            raise InvalidRequest(
                "logit_bias names token ids, which this server does not know; start it with the "
                "--tokenizer of the upstream's model",
                "logit_bias",
            )

    def _constraint(self, grammar: Grammar) -> dict[str, Any]:
        """Return the field for a grammar. Raises InvalidRequest for one that the upstream does not
        know."""
        known = ("json_schema", *self.dialect.grammars)
        if grammar.kind not in known or grammar.n_read:
            names = " or ".join(GRAMMARS[kind] for kind in known)
            raise InvalidRequest(
                f"only {names} is passed on to this upstream ({self.dialect.name}), and only from "
                "the beginning of an answer; leave the grammar out, or ask the upstream itself",
                "grammar",
            )
        if self.dialect.native:
            return {"response_format": grammar_of(grammar)}
        if grammar.kind == "regex":
            return {"structured_outputs": {"regex": grammar.text}}
        content = {"name": "answer", "schema": json.loads(grammar.text)}
        return {"response_format": {"type": "json_schema", "json_schema": content}}
