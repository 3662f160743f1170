"""`POST /v1/generations/{id}/params`: change the sampling settings of an answer being written."""

from __future__ import annotations

import threading

from flask import Flask, Response, jsonify

from app.http.errors import GenerationNotFoundError
from app.openai.body import decode_body
from app.openai.choices import Choices
from app.openai.schema import engine_settings
from app.protocol.messages import SamplingUpdate
from gpu import InvalidRequest


class Generations:
    """Answers that are being written, by the id of their response. Thread-safe.

    Whoever knows an id may change its settings: ids are random, and only the client gets one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._choices: dict[str, Choices] = {}

    def add(self, id: str, choices: Choices) -> None:
        with self._lock:
            self._choices[id] = choices

    def remove(self, id: str) -> None:
        with self._lock:
            del self._choices[id]

    def find(self, id: str) -> Choices:
        """Return the choices of a response; raises `GenerationNotFoundError`."""
        with self._lock:
            choices = self._choices.get(id)
        if choices is None:
            raise GenerationNotFoundError(
                f"no answer with the id {id!r:.80} is being written; it may have ended. The id is "
                "in every chunk of a stream"
            )
        return choices


def register(app: Flask, generations: Generations) -> None:
    """Add the route."""

    @app.post("/v1/generations/<id>/params")
    def change_params(id: str) -> Response:
        choices = generations.find(id)
        update = decode_body(SamplingUpdate)
        given = {name: getattr(update, name) for name in update.__struct_fields__}
        changes = engine_settings(given)
        if not changes:
            settings = ", ".join(update.__struct_fields__)
            raise InvalidRequest(f"expected at least one setting to change, of {settings}")
        first_tokens = choices.update(**changes)
        return jsonify(
            id=id,
            choices=[
                {"index": index, "first_token": first} for index, first in first_tokens.items()
            ],
        )
