"""Modules that an adapter can change, and the memory that a training needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.models.free_memory import host_bytes
from app.train.messages import LoraSettings, StepJob, TrainJob
from gpu import DeviceError, InvalidRequest, ModelConfig, lora_targets_of

FLOAT = 4
"""Bytes of a float32."""
TRAINED = 4 * FLOAT
"""Bytes of a trained number: itself, its gradient, and the two moments of Adam."""
LIBRARIES = 600 << 20
"""Bytes of PyTorch, transformers and PEFT in memory."""


class TrainTarget(msgspec.Struct, frozen=True):
    """Modules of this name in all layers. `width`: sum of their inputs and outputs, which is the
    size of their adapters of rank 1."""

    name: str
    modules: int
    width: int


def train_targets(model: Path) -> tuple[TrainTarget, ...]:
    """Return what can be trained in the model of a folder or GGUF file: the matrices of attention
    and dense MLPs. Raises ModelError."""
    widths: dict[str, list[int]] = {}
    for target in lora_targets_of(model):
        if not target.is_optional:  # experts and routers are parameters of no module of their own
            name = target.module.rpartition(".")[2]
            widths.setdefault(name, []).append(target.n_in + target.n_out)
    return tuple(TrainTarget(name, len(all), sum(all)) for name, all in widths.items())


def chosen_targets(settings: LoraSettings, offered: Sequence[TrainTarget]) -> LoraSettings:
    """Return the settings with the names of all their targets. Raises InvalidRequest for a target
    that the model does not have."""
    names = [target.name for target in offered]
    for name in settings.targets:
        if name not in names:
            raise InvalidRequest(
                f"this model has no module {name!r} to train; expected some of {', '.join(names)}",
                "targets",
            )
    return msgspec.structs.replace(settings, targets=settings.targets or tuple(names))


def expect_memory(job: TrainJob, parameters: int, free: int | None = None) -> int:
    """Return the bytes that a training needs. `parameters`: of the base; `free`: measured if None.
    Raises DeviceError if they are not free."""
    need = needed_bytes(job, parameters)
    _expect_free(need, f"training {job.name} on lines of up to {longest(job)} tokens", free)
    return need


def needed_bytes(job: TrainJob, parameters: int) -> int:
    """Return the bytes at the peak of a training.

    The base in float32 (twice while a GGUF file is dequantised), the adapter with gradients and
    moments, and `activation_bytes` of the longest line.
    """
    path = Path(job.model)
    base = FLOAT * parameters * (2 if path.is_file() else 1)
    width = sum(t.width for t in train_targets(path) if t.name in job.settings.targets)
    adapter = TRAINED * job.settings.rank * width
    return LIBRARIES + base + adapter + activation_bytes(path, longest(job))


def expect_memory_of_step(job: StepJob, parameters: int, free: int | None = None) -> int:
    """Return the bytes that one step of a full fine-tune needs: weights and gradients in float32,
    besides what `activation_bytes` needs. Raises DeviceError if they are not free."""
    need = LIBRARIES + 2 * FLOAT * parameters + activation_bytes(Path(job.model), len(job.ids))
    _expect_free(need, f"one step of a full fine-tune of {job.name}", free)
    return need


def activation_bytes(model: Path, n_tokens: int) -> int:
    """Return the bytes that the backward pass of a line reads: per token and layer about 12 vectors
    of the hidden size and 4 of the MLP's, and 4 rows of logits."""
    config = ModelConfig.from_folder(model)
    per_layer = 12 * config.hidden_size + 4 * config.intermediate_size
    return FLOAT * n_tokens * (config.n_layers * per_layer + 4 * config.vocab_size)


def _expect_free(need: int, what: str, free: int | None) -> None:
    free = host_bytes() if free is None else free
    if free is not None and need > free:
        raise DeviceError(
            f"{what} needs about {need / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB are free; "
            "use a smaller model, fewer targets or shorter lines"
        )


def longest(job: TrainJob) -> int:
    """Return the tokens of the longest line."""
    return max(len(each.ids) for each in (*job.examples, *job.held_out))
