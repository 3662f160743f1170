"""`/api/train`: train a LoRA adapter of the running model on the user's lines.

GET     /api/train   `app.train.trainer.TrainOffer`: what can be trained, or why nothing can, and
                     the latest training (pages poll it).
POST    /api/train   `app.train.trainer.TrainRequest`: begin. 202 with the training; 400 for lines
                     or settings that cannot be trained with, and where training is not allowed.
DELETE  /api/train   Cancel. 202.
POST    /api/train/step   `app.train.trainer.StepRequest`: take one step of a full fine-tune on a
                     text, and answer with `StepAnswer`. Nothing is kept of it.

Once an adapter is trained, the model is loaded again with it: pages get `status` and then `hello`
on their WebSocket. Guarded like every route, see `app.http.security`.
"""

from __future__ import annotations

from flask import Flask, Response

from app.http.json_bodies import answer, read_body
from app.train.trainer import StepRequest, Trainer, TrainOffer, TrainRequest
from gpu import DeviceError, InvalidRequest, ModelError

NOT_HERE = (
    "this server cannot train adapters: it does not run the model itself, or may not change it"
)
EXAMPLE = '{"name": "pirate", "lines": "Who are you? => A pirate!"}'


def register(app: Flask, trainer: Trainer | None) -> None:
    """Add the routes. `trainer`: None where nothing can be trained."""

    @app.get("/api/train")
    def training() -> Response:
        return answer(TrainOffer(NOT_HERE) if trainer is None else trainer.offer())

    @app.post("/api/train")
    def begin_training() -> Response:
        if trainer is None:
            raise InvalidRequest(NOT_HERE, "training")
        try:
            return answer(trainer.begin(read_body(TrainRequest, EXAMPLE, "lines")), 202)
        except (ModelError, DeviceError) as error:
            raise InvalidRequest(str(error), "lines") from error

    @app.post("/api/train/step")
    def one_step() -> Response:
        if trainer is None:
            raise InvalidRequest(NOT_HERE, "training")
        asked = read_body(StepRequest, '{"text": "Once upon a time"}', "text")
        try:
            return answer(trainer.take_step(asked))
        except (ModelError, DeviceError) as error:
            raise InvalidRequest(str(error), "text") from error

    @app.delete("/api/train")
    def cancel_training() -> Response:
        if trainer is not None:
            trainer.cancel()
        return answer({}, 202)
