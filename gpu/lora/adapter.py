"""A LoRA adapter as PEFT saves it (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language
Models").

Its matrices A (rank, inputs) and B (outputs, rank) add to the output of a base matrix W, scaled by
a strength:

    y = W x + strength · (α / r) · B A x

`gpu.ops.lora` computes this, called by `gpu.models.forward_pass`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from gpu.checkpoint.reader import F32, Checkpoint, WeightSource
from gpu.checkpoint.safetensors_files import open_safetensors
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.files.json_object import shown
from gpu.info import LoraInfo
from gpu.lora.config import CONFIG, LoraConfig
from gpu.lora.pairs import LoraPair, match_tensors, names_to_match
from gpu.lora.targets import lora_targets, module_in_base

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
MAX_LORAS = 8
NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Lora:
    """A validated adapter; its numbers are read on demand."""

    def __init__(self, name: str, file: Checkpoint, pairs: Mapping[str, LoraPair]) -> None:
        self.name = name
        self._file = file
        self._pairs = pairs
        self._shared: dict[str, F32] = {}

    @classmethod
    def open(cls, name: str, folder: Path, config: ModelConfig, base: WeightSource) -> Lora:
        """Open the adapter in a folder with adapter_config.json and adapter_model.safetensors.

        Raises ModelError, naming the adapter, for one that is damaged, unsupported, or made for
        another base.
        """
        try:
            return cls._opened(name, folder, config, base)
        except ModelError as error:
            raise ModelError(f"LoRA adapter {shown(name)}: {error}") from None

    @classmethod
    def _opened(cls, name: str, folder: Path, config: ModelConfig, base: WeightSource) -> Lora:
        if not NAME.fullmatch(name):
            raise ModelError(
                "expected a name of 1 to 64 letters, digits, dots, dashes or underscores"
            )
        _expect_files(folder)
        file = Checkpoint(folder, open_safetensors(folder / WEIGHTS))
        targets = tuple(lora_targets(config, base))
        lora_config = LoraConfig.read(folder, names_to_match(file, targets))
        in_base = partial(module_in_base, config=config, checkpoint=base)
        pairs = match_tensors(file, lora_config, targets, in_base)
        return cls(name, file, pairs)

    @property
    def info(self) -> LoraInfo:
        numbers = (self._file.shape(name) for name in self._file.names())
        return LoraInfo(
            name=self.name,
            rank=max(pair.rank for pair in self._pairs.values()),
            parameters=sum(rows * columns for rows, columns in numbers),
            modules=len(self._pairs),
        )

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules of the base that it changes."""
        return tuple(self._pairs)

    def rank(self, module: str) -> int:
        """Return the rank for a module; 0 for one that it does not change."""
        pair = self._pairs.get(module)
        return pair.rank if pair else 0

    def origin_of_a(self, module: str) -> object:
        """Return a key that is equal for modules with the same A; None for a module that it does
        not change."""
        pair = self._pairs.get(module)
        return pair and (pair.a, pair.expert_slice.expert if pair.expert_slice else None)

    def a(self, module: str) -> F32:
        """Return A, (rank, n_in). Raises ModelError for numbers that are not finite."""
        pair = self._pairs[module]
        if pair.expert_slice is None:
            return self._read(pair.a)
        return pair.expert_slice.a(self._whole(pair.a), self._whole(pair.b))

    def b(self, module: str) -> F32:
        """Return B times α / r, (n_out, rank). Raises ModelError for numbers that are not
        finite."""
        pair = self._pairs[module]
        if pair.expert_slice is None:
            b = self._read(pair.b)
        else:
            b = pair.expert_slice.b(self._whole(pair.a), self._whole(pair.b))
        scaled: F32 = b * np.float32(pair.scale)
        return scaled

    def _whole(self, tensor: str) -> F32:
        """Return a tensor that many modules share; those of one parameter stay in memory."""
        if tensor not in self._shared:
            if len(self._shared) == 2:
                self._shared.clear()
            self._shared[tensor] = self._read(tensor)
        return self._shared[tensor]

    def _read(self, tensor: str) -> F32:
        try:
            return self._file.read_f32(tensor)
        except ModelError as error:
            raise ModelError(f"LoRA adapter {shown(self.name)}: {error}") from None


def check_lora(name: str, folder: str | Path, model: str | Path) -> None:
    """Read a whole adapter. Raises ModelError if the model at `model` cannot use it."""
    path = Path(model)
    lora = Lora.open(name, Path(folder), ModelConfig.from_folder(path), Checkpoint.open(path))
    for module in lora.modules:
        lora.a(module), lora.b(module)


def open_loras(
    folders: Mapping[str, str | Path], config: ModelConfig, base: WeightSource
) -> tuple[Lora, ...]:
    """Open the adapters in `folders`, which maps names to folders. Raises ModelError."""
    if len(folders) > MAX_LORAS:
        raise ModelError(f"expected at most {MAX_LORAS} LoRA adapters, but got {len(folders)}")
    return tuple(Lora.open(name, Path(path), config, base) for name, path in folders.items())


def _expect_files(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder; expected one with {CONFIG} and {WEIGHTS}")
    if not (folder / WEIGHTS).is_file() and (folder / PICKLE).is_file():
        raise ModelError(
            f"{folder}: {PICKLE} is a pickle, which can run code; save it as {WEIGHTS}"
        )
    for file in (CONFIG, WEIGHTS):
        if not (folder / file).is_file():
            raise ModelError(f"{folder}: {file} is missing; an adapter has {CONFIG} and {WEIGHTS}")
