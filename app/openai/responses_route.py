"""`POST /v1/responses`: OpenAI's Responses API, for text, without stored state."""

from __future__ import annotations

from functools import partial

from flask import Flask, Response

from app.engine_client import EngineClient
from app.http.client_limits import submitter
from app.openai.body import decode_body
from app.openai.generations import Generations
from app.openai.long_requests import turn_to_read
from app.openai.responses_answer import ResponseObject, stream, whole
from app.openai.responses_request import ResponsesRequest
from app.openai.serving import AnswerOptions, serve
from app.prompt.prompts import message_ids
from app.prompt.truncation import Room, read_conversation


def register(app: Flask, engine: EngineClient, generations: Generations) -> None:
    """Add the route."""

    @app.post("/v1/responses")
    def responses() -> Response:
        hello, submit = engine.require_ready(), submitter(engine)
        body = decode_body(ResponsesRequest)
        interventions = body.interventions(hello.model)
        params = body.params(hello.api_defaults, hello.limits.context)
        truncation = body.truncation or "disabled"
        with turn_to_read(engine):
            prompt = read_conversation(
                body.messages(),
                partial(message_ids, engine.tokenizer),
                Room(hello.limits.context, params.max_tokens),
                truncation,
            )
        request = body.run(prompt.ids, params, interventions, truncation)
        name = body.model or hello.model.name
        response = ResponseObject(body, params, name, len(prompt.dropped))
        answering = AnswerOptions(
            response.id,
            partial(whole, response=response),
            partial(stream, response=response) if body.stream else None,
            constraint=body.constraint(),
        )
        return serve(engine, submit, generations, [request], answering)
