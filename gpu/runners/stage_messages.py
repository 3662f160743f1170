"""Messages between an engine and the process of a stage, and between those of two stages.

Steps and their outputs, which travel all the time, are msgpack with arrays as bytes: nine times as
fast as pickling. All else is pickled, as Ray pickles what it carries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig, Stage
from gpu.errors import DeviceError, EngineError, InvalidRequest, ModelError
from gpu.kv.blocks import KvShape
from gpu.load_options import LoadOptions
from gpu.runners.stage_worker import StageOutput
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.stage_hosts import StageAddress
from gpu.step import Step, StepResult

# ---- to a stage ------------------------------------------------------------------------------
# An encoded `Step` is one too, and None, which ends the stage.


@dataclass(frozen=True, slots=True)
class Open:
    """Open the device. Answer: the most bytes that it can bind at once. `name`: of the stage, for
    messages; `options`: of the model, with the GPU of this stage as `adapter`."""

    call: int
    name: str
    is_first: bool
    options: LoadOptions
    checked: bool | None


@dataclass(frozen=True, slots=True)
class Load:
    """Load the stage of the model at `folder`. Answer: its `StageDescription`. `following`: the
    next stage, None of the last one; `kv_shape`: see `gpu.runners.loaded_model.StagePart`."""

    call: int
    folder: Path
    config: ModelConfig
    stage: Stage
    kv_shape: KvShape
    following: StageAddress | None


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function of the runner. Answer: what it returns."""

    call: int
    function: Callable[[WgpuRunner], Any]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Compile one more kernel. Answer: whether there was one."""

    call: int
    interventions: bool


@dataclass(frozen=True, slots=True)
class Tell:
    """Call a function of the runner; no answer."""

    function: Callable[[WgpuRunner], None]


# ---- from a stage ----------------------------------------------------------------------------
# An encoded `StageOutput` is one too.


@dataclass(frozen=True, slots=True)
class Answer:
    call: int
    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    call: int
    error: EngineError


@dataclass(frozen=True, slots=True)
class Loading:
    """How far loading is, of this stage's share of the whole model."""

    share: float
    message: str


# ---- errors ----------------------------------------------------------------------------------


class StageError(DeviceError):
    """Failure of a stage; the message begins with its name."""


def named(name: str, error: BaseException) -> EngineError:
    """Return an error of stage `name` that says so. A request that is invalid is so everywhere."""
    if isinstance(error, (InvalidRequest, StageError)):
        return error
    what = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    kind = type(error) if isinstance(error, ModelError) else StageError
    return kind(f"{name}: {what}")


# ---- steps and their outputs -----------------------------------------------------------------


class _Output(msgspec.Struct, array_like=True):
    results: tuple[StepResult, ...]
    failure: str | None


def _encode_array(array: object) -> tuple[str, tuple[int, ...], memoryview]:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{type(array).__name__} does not travel between stages")
    array = np.ascontiguousarray(array)
    return array.dtype.str, array.shape, array.reshape(-1).view(np.uint8).data


def _decode_array(type: object, found: Any) -> npt.NDArray[Any]:
    dtype, shape, data = found
    return np.frombuffer(data, dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_step_decoder = msgspec.msgpack.Decoder(Step)
_output_decoder = msgspec.msgpack.Decoder(_Output, dec_hook=_decode_array)


def encode_step(step: Step) -> bytes:
    return _encoder.encode(step)


def decode_step(data: bytes) -> Step:
    return _step_decoder.decode(data)


def encode_output(output: StageOutput, name: str) -> bytes:
    """Return an output as bytes. A failure is that of stage `name`, unless it says so already."""
    failure = output.failure
    return _encoder.encode(
        _Output(output.results, None if failure is None else str(named(name, failure)))
    )


def decode_output(data: bytes) -> StageOutput:
    found = _output_decoder.decode(data)
    failure = None if found.failure is None else StageError(found.failure)
    return StageOutput(found.results, failure)
