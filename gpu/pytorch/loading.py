"""Loading of tensors of a checkpoint into PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch.nn import functional

from gpu.checkpoint.conversion import Conversion
from gpu.checkpoint.packing import FORMATS, pack, unpack
from gpu.checkpoint.reader import Checkpoint, WeightSource
from gpu.errors import ModelError
from gpu.pytorch.interventions import NO_INTERVENTIONS, InterventionHooks
from gpu.step import Floats


@dataclass(frozen=True, slots=True)
class Linear:
    """x → x · weightᵀ + bias, weight (n_out, n_in); `module`: its name in the checkpoint."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    module: str = ""

    def __call__(
        self, x: torch.Tensor, hooks: InterventionHooks = NO_INTERVENTIONS
    ) -> torch.Tensor:
        y = functional.linear(x, self.weight, self.bias)
        return hooks.linear(self.module, x, y)


class Loader:
    """Loads tensors as float32 and checks their shapes. Matrices are quantised to `dtype` and back,
    so that they hold the numbers the shaders compute with. `dtypes`: storage types of single
    matrices by name (`gpu.checkpoint.auto_dtype.MatrixDtypes`)."""

    def __init__(
        self,
        checkpoint: WeightSource,
        dtype: str,
        on_weights: Callable[[int], None],
        dtypes: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._dtypes = dtypes
        self._on_weights = on_weights
        self.conversion = Conversion(checkpoint)
        self.n_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def vector(self, name: str, n: int) -> torch.Tensor:
        return self._done(self._read(name, (n,)))

    def matrix(self, name: str, n_out: int, n_in: int) -> torch.Tensor:
        return self._done(self._stored(self._of(name), self._read(name, (n_out, n_in)), name))

    def vocab_matrix(self, name: str, n: int, width: int) -> torch.Tensor:
        """Load an embedding or output matrix."""
        dtype = FORMATS[self._dtype].vocabulary
        return self._done(self._stored(dtype, self._read(name, (n, width)), name))

    def float32_matrix(self, name: str, n_out: int, n_in: int) -> torch.Tensor:
        """Load a matrix that stays float32 whatever `dtype` is."""
        return self._done(self._stored("f32", self._read(name, (n_out, n_in)), name))

    def stacked(self, name: str, n: int, n_out: int, n_in: int) -> list[torch.Tensor]:
        """Load the `n` matrices of one tensor."""
        rows = self._read(name, (n, n_out, n_in)).reshape(-1, n_in)
        return list(self._done(self._stored(self._of(name), rows, name)).view(n, n_out, n_in))

    def linear(self, name: str, n_out: int, n_in: int, bias: bool) -> Linear:
        weight = self.matrix(f"{name}.weight", n_out, n_in)
        return Linear(weight, self.vector(f"{name}.bias", n_out) if bias else None, name)

    def _read(self, name: str, shape: tuple[int, ...]) -> Floats:
        found = self._checkpoint.shape(name)
        if found != shape:
            raise ModelError(f"tensor {name} has shape {found}, but the config makes it {shape}")
        return self._checkpoint.read_f32(name)

    def _of(self, name: str) -> str:
        """Return the storage type of a matrix."""
        return self._dtypes.get(name) or self._dtype

    def _stored(self, dtype: str, rows: Floats, name: str) -> Floats:
        """Quantise rows to `dtype` and back, or take the integers of the file if it has them."""
        checkpoint = self._checkpoint
        if isinstance(checkpoint, Checkpoint) and checkpoint.is_packed(name, dtype):
            self.conversion.note([name], dtype, in_place=True)
            return unpack(dtype, checkpoint.read_packed(name, slice(0, len(rows))), rows.shape[1])
        self.conversion.note([name], dtype)
        return rows if dtype == "f32" else unpack(dtype, pack(dtype, rows, name), rows.shape[1])

    def _done(self, values: Floats) -> torch.Tensor:
        data = torch.from_numpy(values)
        self.n_bytes += data.nbytes
        self._on_weights(values.size)
        return data
