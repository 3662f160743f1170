"""Jobs from the user's lines and settings."""

from __future__ import annotations

from pathlib import Path

from app.engine_client import Tokenizer
from app.train.lines import examples_of, hold_out
from app.train.messages import LoraSettings, Optimizer, StepJob, TrainJob
from app.train.process import missing_packages, n_threads
from app.train.sizes import chosen_targets, expect_memory, expect_memory_of_step, train_targets
from gpu import DeviceError, InvalidRequest, Inventory, ModelConfig

MAX_STEP_TOKENS = 256
"""Limit of a text on which one step is taken."""


def make_step(
    model: Path,
    name: str,
    tokenizer: Tokenizer,
    text: str,
    learning_rate: float,
    optimizer: Optimizer,
) -> StepJob:
    """Return the job of one step on `text`. Raises as `make_job` does."""
    if missing := missing_packages():
        raise DeviceError(missing)
    LoraSettings(learning_rate=learning_rate).validate()
    ids = tuple(tokenizer.encode(text, specials=False))
    most = min(MAX_STEP_TOKENS, ModelConfig.from_folder(model).context)
    if len(ids) < 2:
        raise InvalidRequest(
            "a single token has no loss: it has no context; write more",
            "text",
        )
    if len(ids) > most:
        raise InvalidRequest(
            f"the text has {len(ids):,} tokens, but at most {most} are accepted; shorten it", "text"
        )
    job = StepJob(str(model), name, ids, learning_rate, optimizer, n_threads())
    expect_memory_of_step(job, Inventory.from_folder(model).parameters)
    return job


def make_job(
    model: Path, name: str, tokenizer: Tokenizer, text: str, settings: LoraSettings, out: Path
) -> TrainJob:
    """Return the job of training an adapter for the model at `model` on the lines of `text`.

    Raises InvalidRequest for lines and settings that cannot be trained with, ModelError, and
    DeviceError for too little memory or without the packages that train.
    """
    if missing := missing_packages():
        raise DeviceError(missing)
    settings.validate()
    settings = chosen_targets(settings, train_targets(model))
    examples = examples_of(tokenizer, text, ModelConfig.from_folder(model).context)
    train, held_out = hold_out(examples, settings.seed)
    job = TrainJob(str(model), name, str(out), settings, tuple(train), tuple(held_out), n_threads())
    expect_memory(job, Inventory.from_folder(model).parameters)
    return job
