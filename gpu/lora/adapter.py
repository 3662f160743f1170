"""An adapter (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models") as PEFT saves
it, for one base: to the output of a matrix W its two matrices A (rank, inputs) and B (outputs,
rank) add, turned up by a strength,

    y = W x + strength · (α / r) · B A x
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu.checkpoint.files import open_safetensors
from gpu.checkpoint.reader import F32, Checkpoint, WeightSource
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.json_object import shown
from gpu.lora.base import Linear, linears, module_in_base
from gpu.lora.config import CONFIG, LoraConfig
from gpu.runner import LoraInfo

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
MAX_LORAS = 8
NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pair:
    """The two matrices of a module, by their names in the file; `scale`: α / r."""

    a: str
    b: str
    rank: int
    scale: float


class Lora:
    """An adapter whose file was judged; its numbers are read when they are asked for."""

    def __init__(self, name: str, file: Checkpoint, pairs: Mapping[str, Pair]) -> None:
        self.name = name
        self._file = file
        self._pairs = pairs

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
        there = {linear.module: linear for linear in linears(config, base)}
        pairs: dict[str, Pair] = {}
        for module in _adapted(file):
            linear = there.get(module_in_base(module, config, base))
            if linear is None:
                raise ModelError(
                    f"it changes {shown(module)}, but adapters are supported for the matrices of "
                    "attention and MLP that the base has, not for experts, embeddings or heads"
                )
            if not wanted.adapts(module, linear.layer):
                raise ModelError(f"its config does not target {shown(module)}, its file does")
            pairs[linear.module] = _pair(file, module, linear, wanted)
        _expect_whole(pairs, there.values(), wanted)
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

    def a(self, module: str) -> F32:
        """(rank, n_in). Raises ModelError for what is not finite."""
        return self._read(self._pairs[module].a)

    def b(self, module: str) -> F32:
        """(n_out, rank), times α / r. Raises ModelError for what is not finite."""
        pair = self._pairs[module]
        scaled: F32 = self._read(pair.b) * np.float32(pair.scale)
        return scaled

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


def _adapted(file: Checkpoint) -> list[str]:
    """The modules that the file has both matrices of, and no other tensor."""
    halves: dict[str, set[str]] = {}
    for name in file.names():
        match = TENSOR.fullmatch(name)
        if match is None:
            raise ModelError(
                f"tensor {shown(name)} is not supported; expected only "
                "base_model.model.<module>.lora_A.weight and .lora_B.weight"
            )
        halves.setdefault(match[1], set()).add(match[2])
    for module, found in halves.items():
        for half in {"A", "B"} - found:
            raise ModelError(f"lora_{half} of {shown(module)} is missing; the file is damaged")
    if not halves:
        raise ModelError("its file has no tensors")
    return list(halves)


def _pair(file: Checkpoint, module: str, linear: Linear, wanted: LoraConfig) -> Pair:
    a, b = (f"base_model.model.{module}.lora_{half}.weight" for half in "AB")
    rank = wanted.rank(module)
    for name, shape in ((a, (rank, linear.n_in)), (b, (linear.n_out, rank))):
        if file.shape(name) != shape:
            raise ModelError(
                f"tensor {shown(name)} has shape {file.shape(name)}, but base and config make it "
                f"{shape}"
            )
        if not file.is_readable(name):
            raise ModelError(f"tensor {shown(name)} is {file.dtype(name)}, not F32, F16 or BF16")
    return Pair(a, b, rank, wanted.scale(module))


def _expect_whole(pairs: Mapping[str, Pair], there: Iterable[Linear], wanted: LoraConfig) -> None:
    for linear in there:
        if linear.module not in pairs and wanted.adapts(linear.module, linear.layer):
            raise ModelError(
                f"its config targets {shown(linear.module)}, but its file has nothing for it; "
                "the file is damaged, or of another base"
            )
