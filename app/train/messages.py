"""Messages between the server and the process that trains, and the settings of a training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from gpu import MAX_LORA_RANK, InvalidRequest

Optimizer = Literal["adamw", "sgd"]

MAX_STEPS = 10_000
MAX_SEED = 2**32 - 1


class LoraSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a training, as PEFT and transformers name them.

    rank           r of the adapter's matrices A (r, inputs) and B (outputs, r)
    alpha          B A is multiplied by alpha / rank
    targets        last names of the adapted modules, such as q_proj; (): all that there are
    learning_rate  of the first step; it falls linearly to 0
    steps          optimiser steps, each on one line
    seed           of the adapter's first numbers and of the order of the lines
    """

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    learning_rate: float = 1e-3
    steps: int = 30
    seed: int = 0

    def validate(self) -> None:
        """Raise InvalidRequest for a setting that is out of range."""
        for param, expected, value in self._faults():
            raise InvalidRequest(f"expected {expected}, but got {value}", param)

    def _faults(self) -> Iterator[tuple[str, str, float]]:
        if not 1 <= self.rank <= MAX_LORA_RANK:
            yield "rank", f"a rank from 1 to {MAX_LORA_RANK}", self.rank
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            yield "alpha", "an alpha above 0", self.alpha
        if not 0 < self.learning_rate <= 1:
            yield "learning_rate", "a learning rate above 0 and at most 1", self.learning_rate
        if not 1 <= self.steps <= MAX_STEPS:
            yield "steps", f"1 to {MAX_STEPS:,} steps", self.steps
        if not 0 <= self.seed <= MAX_SEED:
            yield "seed", f"a seed from 0 to {MAX_SEED}", self.seed


class Example(msgspec.Struct, frozen=True):
    """Token ids of a line. The first `n_prompt` of them (at least one) have no loss."""

    ids: tuple[int, ...]
    n_prompt: int


class TrainJob(msgspec.Struct, frozen=True, tag="train"):
    """An adapter to train.

    model     folder or GGUF file of the base
    name      name of the base in the adapter's config and in errors
    folder    where to write the adapter; it does not exist yet
    examples  lines to train on
    held_out  lines whose loss is measured only
    threads   threads that may compute
    """

    model: str
    name: str
    folder: str
    settings: LoraSettings
    examples: tuple[Example, ...]
    held_out: tuple[Example, ...] = ()
    threads: int = 1


class StepJob(msgspec.Struct, frozen=True, tag="step"):
    """One step of a full fine-tune on the text `ids`, of which nothing is kept."""

    model: str
    name: str
    ids: tuple[int, ...]
    learning_rate: float
    optimizer: Optimizer
    threads: int = 1


class TrainBegun(msgspec.Struct, frozen=True, tag="begun"):
    """The base is loaded; `parameters`: of the adapter, all of which are trained."""

    parameters: int


class TrainStep(msgspec.Struct, frozen=True, tag="step"):
    """An optimiser step (from 1) was taken. `loss`: mean over the tokens of its line, in nats,
    before the step."""

    step: int
    loss: float
    seconds_left: float


class HeldOutLoss(msgspec.Struct, frozen=True, tag="held_out"):
    """Mean loss per token of the lines held out, in nats, after `step` steps."""

    step: int
    loss: float


class TrainDone(msgspec.Struct, frozen=True, tag="done"):
    """The adapter is written."""


class TrainFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The training ended without an adapter; `message` says why and what to do."""

    message: str


class MatrixStep(msgspec.Struct, frozen=True):
    """A parameter in one step: norms of its gradient, of its change, and of itself before.

    layer  None outside the layers
    name   of its module in the layer, such as mlp.up_proj; `.bias` is added for a bias
    """

    layer: int | None
    name: str
    gradient: float
    change: float
    weight: float


class OneStep(msgspec.Struct, frozen=True, tag="one_step"):
    """Result of one step. `before`, `after`: log-probability of each token but the first."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    matrices: tuple[MatrixStep, ...]


Job = TrainJob | StepJob
TrainEvent = TrainBegun | TrainStep | HeldOutLoss | TrainDone | TrainFailed | OneStep
LAST_EVENTS = (TrainDone, OneStep)

encode = msgspec.msgpack.encode
decode_job: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
decode_event: msgspec.msgpack.Decoder[TrainEvent] = msgspec.msgpack.Decoder(TrainEvent)
