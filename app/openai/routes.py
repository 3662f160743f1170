"""`/v1/…`: routes for OpenAI clients, and `/v1/models`."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Flask, Response, jsonify

from app.engine_client import EngineClient
from app.openai import generations as generation_routes
from app.openai import responses_route, watermark
from app.openai.chat_completions import complete_chat
from app.openai.completions import complete
from app.openai.generations import Generations
from app.openai.schema import expect_served
from app.protocol.messages import Hello


def register(app: Flask, engine: EngineClient) -> None:
    """Add the `/v1` routes, and the detector of watermarks."""
    generations = Generations()
    generation_routes.register(app, generations)
    responses_route.register(app, engine, generations)
    watermark.register(app, engine)

    @app.get("/v1/models")
    def models() -> Response:
        return jsonify(object="list", data=_models(engine.require_ready()))

    @app.get("/v1/models/<path:name>")
    def model(name: str) -> Response:
        hello = engine.require_ready()
        if hello.embedding is None or name != hello.embedding.name:
            expect_served(name, hello.model)
        return jsonify(next(model for model in _models(hello) if model["id"] == name))

    @app.post("/v1/completions")
    def completions() -> Response:
        return complete(engine, generations)

    @app.post("/v1/chat/completions")
    def chat_completions() -> Response:
        return complete_chat(engine, generations)


def _models(hello: Hello) -> list[dict[str, Any]]:
    """Return the model objects of the base model, its adapters and the embedding model.
    `max_model_len` is vLLM's."""
    model, context, embedding = hello.model, hello.limits.context, hello.embedding
    encoders = [embedding] if embedding is not None else []
    return [
        _model_object(model.name, max_model_len=context, meta=msgspec.to_builtins(model)),
        *(
            _model_object(lora.name, max_model_len=context, parent=model.name)
            for lora in model.loras
        ),
        *(
            _model_object(one.name, max_model_len=one.max_tokens, meta=msgspec.to_builtins(one))
            for one in encoders
        ),
    ]


def _model_object(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "local", **more}
