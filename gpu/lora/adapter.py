"""An adapter (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models") as PEFT saves
it, for one base: to the output of a matrix W its two matrices A (rank, inputs) and B (outputs,
rank) add, turned up by a strength,

    y = W x + strength · (α / r) · B A x
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from gpu.checkpoint.files import open_safetensors
from gpu.checkpoint.reader import F32, Checkpoint, WeightSource
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.json_object import shown
from gpu.lora.base import linears, module_in_base
from gpu.lora.config import CONFIG, LoraConfig
from gpu.lora.pairs import Pair, judged_pairs
from gpu.runner import LoraInfo

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
MAX_LORAS = 8
NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Lora:
    """An adapter whose file was judged; its numbers are read when they are asked for."""

    def __init__(self, name: str, file: Checkpoint, pairs: Mapping[str, Pair]) -> None:
        self.name = name
        self._file = file
        self._pairs = pairs
        self._shared: dict[str, F32] = {}

    @classmethod
    def open(cls, name: str, folder: Path, config: ModelConfig, base: WeightSource) -> Lora:
        """The adapter of a folder with adapter_config.json and adapter_model.safetensors. Raises
        ModelError, naming the adapter, for what is damaged, not supported, or not of this base."""
        try:
            return cls._opened(name, folder, config, base)
        except ModelError as error:
            raise ModelError(f"LoRA adapter {shown(name)}: {error}") from None

    @classmethod
    def _opened(cls, name: str, folder: Path, config: ModelConfig, base: WeightSource) -> Lora:
        if not NAME.fullmatch(name):
            raise ModelError(
                "its name must be 1 to 64 letters, digits, dots, dashes or underscores"
            )
        _expect_files(folder)
        wanted = LoraConfig.read(folder)
        file = Checkpoint(folder, open_safetensors(folder / WEIGHTS))
        in_base = partial(module_in_base, config=config, checkpoint=base)
        pairs = judged_pairs(file, wanted, tuple(linears(config, base)), in_base)
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
        """Those of the base that it changes."""
        return tuple(self._pairs)

    def rank(self, module: str) -> int:
        """0 for a module that it leaves alone."""
        pair = self._pairs.get(module)
        return pair.rank if pair else 0

    def origin_of_a(self, module: str) -> object:
        """Modules of which this is equal have the same A; None: of one that it leaves alone."""
        pair = self._pairs.get(module)
        return pair and (pair.a, pair.of_all.expert if pair.of_all else None)

    def a(self, module: str) -> F32:
        """(rank, n_in). Raises ModelError for what is not finite."""
        pair = self._pairs[module]
        if pair.of_all is None:
            return self._read(pair.a)
        return pair.of_all.a(self._whole(pair.a), self._whole(pair.b))

    def b(self, module: str) -> F32:
        """(n_out, rank), times α / r. Raises ModelError for what is not finite."""
        pair = self._pairs[module]
        if pair.of_all is None:
            b = self._read(pair.b)
        else:
            b = pair.of_all.b(self._whole(pair.a), self._whole(pair.b))
        scaled: F32 = b * np.float32(pair.scale)
        return scaled

    def _whole(self, tensor: str) -> F32:
        """A tensor that many modules share; those of one parameter are kept at a time."""
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
    """Reads an adapter whole. Raises ModelError for one that the model at `model` cannot have."""
    path = Path(model)
    lora = Lora.open(name, Path(folder), ModelConfig.from_folder(path), Checkpoint.open(path))
    for module in lora.modules:
        lora.a(module), lora.b(module)


def open_loras(
    folders: Mapping[str, str | Path], config: ModelConfig, base: WeightSource
) -> tuple[Lora, ...]:
    """The adapters in these folders, by their names. Raises ModelError."""
    if len(folders) > MAX_LORAS:
        raise ModelError(f"{len(folders)} LoRA adapters are given; {MAX_LORAS} are taken at most")
    return tuple(Lora.open(name, Path(path), config, base) for name, path in folders.items())


def _expect_files(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder; give one with {CONFIG} and {WEIGHTS}")
    if not (folder / WEIGHTS).is_file() and (folder / PICKLE).is_file():
        raise ModelError(
            f"{folder}: {PICKLE} is a pickle, which can run code; save it as {WEIGHTS}"
        )
    for file in (CONFIG, WEIGHTS):
        if not (folder / file).is_file():
            raise ModelError(f"{folder}: {file} is missing; an adapter has {CONFIG} and {WEIGHTS}")
