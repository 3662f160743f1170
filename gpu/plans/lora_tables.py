"""Adapters on the device, stacked for every matrix that one of them changes, and how strong each is
in every slot, which `gpu.ops.lora` looks up by the slot of a row. Changing a strength is a small
write between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.weights import WeightLoader
from gpu.errors import InvalidRequest, ModelError
from gpu.lora.adapter import Lora
from gpu.lora.stack import FOUR, Stack
from gpu.models.workspace import Adapted, LowRank
from gpu.ops.step_buffer import MAX_ROWS
from gpu.webgpu.buffers import Tensor, padded


class LoraTables:
    """Of one model; nothing acts at first. Takes no memory without adapters.

    adapted  what a pass with adapters is recorded with; None without any
    """

    def __init__(
        self,
        matrices: Sequence[Matrix],
        loras: Sequence[Lora],
        n_slots: int,
        load: WeightLoader,
    ) -> None:
        self._memory = load.memory
        self._names = [lora.name for lora in loras]
        self._held = np.zeros((n_slots, len(loras)), np.float32)
        self._small: dict[bytes, Tensor] = {}
        self.adapted = self._placed(matrices, loras, load) if loras else None

    def set(self, slot: int, strengths: Mapping[str, float]) -> None:
        """How strong the adapters are for the rows of a slot, off if not named, in the steps
        submitted after this. Raises InvalidRequest for one that is not loaded."""
        for name in strengths:
            if name not in self._names:
                raise InvalidRequest(f"there is no adapter {name!r}", "loras")
        wanted = np.array([strengths.get(name, 0.0) for name in self._names], np.float32)
        if self.adapted and (wanted != self._held[slot]).any():
            self._memory.write(self.adapted.strengths, wanted, at=slot * wanted.nbytes)
            self._held[slot] = wanted

    def _placed(
        self, matrices: Sequence[Matrix], loras: Sequence[Lora], load: WeightLoader
    ) -> Adapted:
        memory, found = self._memory, {}
        for matrix in matrices:
            stack = matrix.laid and Stack.of(loras, matrix.sources, matrix.laid, matrix.k)
            if stack:
                found[matrix.name] = self._low_rank(matrix.name, stack, load)
        _expect_placed(loras, {source for m in matrices if m.name in found for source in m.sources})
        shrunk = max(padded(low.a.n) for low in found.values())
        added = max(low.b.shape[-1] for low in found.values())
        return Adapted(
            found,
            memory.zeros("lora.strengths", self._held.shape),
            memory.zeros("lora.shrunk", (MAX_ROWS, shrunk)),
            memory.zeros("lora.added", (MAX_ROWS, added)),
        )

    def _low_rank(self, name: str, stack: Stack, load: WeightLoader) -> LowRank:
        n_ranks, n = stack.b.shape
        width = -(-n // FOUR) * FOUR
        b = np.zeros((n_ranks, width), np.float32)
        b[:, :n] = stack.b
        first = np.zeros(width, np.uint32)
        first[:n] = stack.first
        return LowRank(
            load.given(f"{name}.lora_a", stack.a),
            self._memory.upload(f"{name}.lora_b", b),
            self._shared("lora.first", first),
            self._shared("lora.ends", stack.ends),
        )

    def _shared(self, name: str, numbers: npt.NDArray[np.uint32]) -> Tensor:
        """The same on the device for all layers that have the same."""
        key = name.encode() + numbers.tobytes()
        if key not in self._small:
            self._small[key] = self._memory.upload(name, numbers)
        return self._small[key]


def _expect_placed(loras: Sequence[Lora], sources: Set[str]) -> None:
    for lora in loras:
        for module in lora.modules:
            if f"{module}.weight" not in sources:
                raise ModelError(
                    f"LoRA adapter {lora.name!r}: it changes {module!r}, which takes no adapters "
                    "in models of this architecture"
                )
