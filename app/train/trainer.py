"""Training on the page: one adapter at a time, which is then loaded into the running model."""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from app.config import Settings
from app.engine_client import EngineClient
from app.models.switching import ModelChange, ModelSwitcher
from app.train.jobs import make_job, make_step
from app.train.messages import (
    HeldOutLoss,
    LoraSettings,
    OneStep,
    Optimizer,
    TrainBegun,
    TrainEvent,
    TrainJob,
    TrainStep,
)
from app.train.process import TrainCancelled, Training, missing_packages, take_step
from app.train.sizes import TrainTarget, train_targets
from gpu import LORA_NAME, EngineError, InvalidRequest, Inventory, QueueFull, cache_folder

log = logging.getLogger(__name__)

NOT_FOR_STRANGERS = (
    "this server trains adapters only if its page can be reached from this machine alone; start it "
    "with --training all to let everyone who uses it train"
)
BUSY = "the server is already training; wait until it is done"
ACTIVE_STATES = ("starting", "training", "loading")

Point = tuple[int, float]
"""Number of steps, and a loss."""


class TrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter to train on lines of text; `name`: what its slider is called."""

    name: str
    lines: str
    settings: LoraSettings = LoraSettings()


class StepRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text to take one step of a full fine-tune on."""

    text: str
    learning_rate: float = 1e-5
    optimizer: Optimizer = "adamw"


class StepAnswer(msgspec.Struct, frozen=True):
    """Result of one step on a text. `pieces`: the text of each token."""

    pieces: tuple[str, ...]
    step: OneStep


class TrainRun(msgspec.Struct, frozen=True):
    """Latest training.

    losses        of each step's line, before the step
    held_out      mean over the lines held out
    seconds_left  None before the first step
    folder        where the adapter is; "" before it is written
    """

    name: str
    state: Literal["starting", "training", "loading", "done", "failed", "cancelled"]
    steps: int
    message: str = ""
    losses: tuple[Point, ...] = ()
    held_out: tuple[Point, ...] = ()
    seconds_left: float | None = None
    folder: str = ""


class TrainOffer(msgspec.Struct, frozen=True):
    """Modules that an adapter can change here, and the latest training.

    why_not     why nothing can be trained here, and what to do; "": it can
    parameters  of the model
    targets     its modules that an adapter can change
    run         latest training; None if there was none
    """

    why_not: str = ""
    parameters: int = 0
    targets: tuple[TrainTarget, ...] = ()
    defaults: LoraSettings = LoraSettings()
    run: TrainRun | None = None


class Trainer:
    """Trains adapters of the running model, and has `switcher` load them."""

    def __init__(self, engine: EngineClient, switcher: ModelSwitcher, settings: Settings) -> None:
        self._engine = engine
        self._switcher = switcher
        self._settings = settings
        self._lock = threading.RLock()
        self._stepping = threading.Lock()
        self._run: TrainRun | None = None
        self._training: Training | None = None  # of `_run`, once it has a job
        self._cancelled = False  # whether `_run` was, also before there is a job

    def offer(self) -> TrainOffer:
        """Raises ModelError for a model whose files are damaged."""
        if why_not := self._why_not():
            return TrainOffer(why_not)
        path = self._engine.require_path()
        parameters = Inventory.from_folder(path).parameters
        return TrainOffer("", parameters, train_targets(path), LoraSettings(), self._run)

    def begin(self, asked: TrainRequest) -> TrainRun:
        """Begin to train. Raises InvalidRequest if training is not allowed, while another adapter
        is being trained, and for lines or settings that cannot be trained with; QueueFull while
        one step is taken; ModelError, and DeviceError."""
        if why_not := self._why_not():
            raise InvalidRequest(why_not, "training")
        name = asked.name
        if not (LORA_NAME.fullmatch(name) and name.strip(".")):
            raise InvalidRequest(
                "expected a name of 1 to 64 letters, digits, dots, dashes or underscores", "name"
            )
        model = self._engine.require_ready().model.name
        self._switcher.expect_room_for_lora(name)
        with self._lock:
            before = self._run
            if before is not None and before.state in ACTIVE_STATES:
                raise InvalidRequest(
                    f"{before.name} is being trained; wait until it is done, or cancel it", "name"
                )
            if self._stepping.locked():
                raise QueueFull(BUSY)
            self._run = TrainRun(name, "starting", asked.settings.steps)
            self._training, self._cancelled = None, False
        try:
            job = make_job(
                self._engine.require_path(), model, self._engine.tokenizer, asked.lines,
                asked.settings, adapter_folder(model, name),
            )  # fmt: skip
        except BaseException:
            self._run = before
            raise
        with self._lock:
            training = self._training = Training(job)
            if self._cancelled:
                training.cancel()
        threading.Thread(
            target=self._train, args=(training, job), name="train", daemon=True
        ).start()
        return self._run

    def take_step(self, asked: StepRequest) -> StepAnswer:
        """Take one step, in seconds. Raises as `begin` does, and QueueFull while another one is
        taken or an adapter is trained."""
        if why_not := self._why_not():
            raise InvalidRequest(why_not, "training")
        model, tokenizer = self._engine.require_ready().model.name, self._engine.tokenizer
        with self._lock:
            latest = self._run
            is_training = latest is not None and latest.state in ("starting", "training")
            if is_training or not self._stepping.acquire(blocking=False):
                raise QueueFull(BUSY)
        try:
            job = make_step(
                self._engine.require_path(), model, tokenizer, asked.text, asked.learning_rate,
                asked.optimizer,
            )  # fmt: skip
            step = take_step(job)
        finally:
            self._stepping.release()
        return StepAnswer(tuple(tokenizer.piece(id) for id in job.ids), step)

    def cancel(self) -> None:
        """Cancel the training, if there is one; nothing is left of it."""
        with self._lock:
            self._cancelled = True
            if self._training is not None:
                self._training.cancel()

    def _why_not(self) -> str:
        if self._settings.training == "off" or self._settings.on_other_machines:
            return "this server cannot train adapters"
        if self._settings.training == "local" and not self._settings.page_is_local:
            return NOT_FOR_STRANGERS
        return missing_packages()

    def _train(self, training: Training, job: TrainJob) -> None:
        try:
            training.run(self._on_event)
            self._change(folder=job.folder)
            if str(self._engine.path) != job.model:
                raise InvalidRequest("another model was loaded in the meantime", "name")
            assert self._run is not None
            self._change(state="loading")
            self._switcher.add_lora(self._run.name, Path(job.folder), self._on_loaded)
        except TrainCancelled:
            self._change(state="cancelled")
        except EngineError as error:
            self._change(state="failed", message=str(error))
        except Exception:
            log.exception("unexpected error while training")
            self._change(state="failed", message="the server made a mistake; see its log")

    def _on_loaded(self, change: ModelChange) -> None:
        self._change(state=change.state, message=change.message)

    def _on_event(self, event: TrainEvent) -> None:
        assert self._run is not None
        match event:
            case TrainBegun():
                self._change(state="training")
            case TrainStep(step=step, loss=loss, seconds_left=left):
                self._change(losses=(*self._run.losses, (step, loss)), seconds_left=left)
            case HeldOutLoss(step=step, loss=loss):
                self._change(held_out=(*self._run.held_out, (step, loss)))

    def _change(self, **fields: object) -> None:
        with self._lock:
            assert self._run is not None
            self._run = replace(self._run, **fields)


def adapter_folder(model: str, name: str) -> Path:
    """Return a new folder for an adapter `name` of a model. One that was trained before under that
    name stays: it may be loaded again. Raises InvalidRequest for a user without a home."""
    cache = cache_folder()
    if cache is None:
        raise InvalidRequest(
            "there is no folder to keep adapters in; start the server with TOKENGLASS_CACHE=FOLDER",
            "training",
        )
    first = cache / "adapters" / model.replace("/", "--") / name
    others = (first.with_name(f"{name}-{n}") for n in itertools.count(2))
    return next(each for each in itertools.chain([first], others) if not each.exists())
