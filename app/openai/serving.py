"""Run a request of `/v1` and answer it, whole or as a stream. If the client disconnects, its runs
are cancelled either way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
from flask import Response, jsonify

from app.engine_client import EngineClient
from app.http.disconnect import client_gone
from app.openai.choices import Choices, Submit
from app.openai.generations import Generations
from app.openai.structured_outputs import Constraint, naming
from app.prompt.grammar_check import check_grammar
from gpu import Request, SamplingParams


@dataclass(frozen=True)
class AnswerOptions:
    """How a request is answered.

    id          of the answer, by which its settings can be changed
    whole       returns the answer once all runs have ended
    stream      yields the answer's server-sent events; None: it is sent whole
    n_runs      texts to write for each prompt
    check       raises InvalidRequest for settings that the runs cannot be changed to
    constraint  grammar of the texts
    """

    id: str
    whole: Callable[[Choices], dict[str, Any]]
    stream: Callable[[Choices], Iterator[bytes]] | None
    n_runs: int = 1
    check: Callable[[SamplingParams], None] = lambda params: None
    constraint: Constraint | None = None


def serve(
    engine: EngineClient,
    submit: Submit,
    generations: Generations,
    requests: Sequence[Request],
    answering: AnswerOptions,
) -> Response:
    """Run the requests, one for each prompt, and answer them. Raises what `ClientLimits.submit`
    raises, and InvalidRequest for a grammar that cannot be used, naming the field that it comes
    from."""
    n_runs, check, constraint = answering.n_runs, answering.check, answering.constraint
    with naming(constraint), ExitStack() as stack:
        if constraint is not None:
            vocab_size = engine.require_ready().model.vocab_size
            check_grammar(constraint.grammar, engine.tokenizer, vocab_size)
            grammar = constraint.grammar
            requests = [msgspec.structs.replace(one, grammar=grammar) for one in requests]
        choices = Choices(submit, requests, n_runs, client_gone(), check)
        stack.callback(choices.cancel)
        generations.add(answering.id, choices)
        stack.callback(generations.remove, answering.id)
        choices.wait_accepted()
        if answering.stream is None:
            return jsonify(answering.whole(choices))
        response = Response(answering.stream(choices), mimetype="text/event-stream")
        response.headers.update({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.call_on_close(stack.pop_all().close)
        return response
