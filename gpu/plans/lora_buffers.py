"""LoRA adapters on the device, stacked per matrix, and their strengths in every slot, which
`gpu.ops.lora` looks up by the slot of a row. A change of strength is a small write between two
steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.checkpoint.weights import WeightLoader
from gpu.config import MoeConfig
from gpu.errors import InvalidRequest, ModelError
from gpu.lora.adapter import Lora
from gpu.lora.stack import VEC4, LoraStack
from gpu.models.decoder import Decoder
from gpu.models.workspace import ExpertLoraWeights, LoraWeights, PassLora
from gpu.webgpu.buffers import Tensor, padded


class LoraBuffers:
    """LoRA tensors of one model; all adapters are off at first. Without adapters it takes no
    memory.

    infos    the adapters, in the order of their strengths
    adapted  tensors that plans with adapters use; None without adapters
    """

    def __init__(
        self,
        model: Decoder,
        loras: Sequence[Lora],
        n_slots: int,
        load: WeightLoader,
    ) -> None:
        self._memory = load.memory
        self.infos = tuple(lora.info for lora in loras)
        self._names = [lora.name for lora in loras]
        self._strengths = np.zeros((n_slots, len(loras)), np.float32)
        self._shared_tensors: dict[bytes, Tensor] = {}
        self.adapted = self._upload(model, loras, load) if loras else None

    def tables(self) -> dict[str, Tensor]:
        """Return the tensor that `set` writes, (n_slots, n_loras), by its name; {} without
        adapters."""
        if self.adapted is None:
            return {}
        return {self.adapted.strengths.name: self.adapted.strengths}

    def set(self, slot: int, strengths: Mapping[str, float]) -> None:
        """Set the strengths of adapters for the rows of a slot, in steps submitted from now on;
        those not named are off. Raises InvalidRequest for an adapter that is not loaded."""
        for name in strengths:
            if name not in self._names:
                raise InvalidRequest(f"there is no adapter {name!r}", "loras")
        wanted = np.array([strengths.get(name, 0.0) for name in self._names], np.float32)
        if self.adapted and (wanted != self._strengths[slot]).any():
            self._memory.write(self.adapted.strengths, wanted, at=slot * wanted.nbytes)
            self._strengths[slot] = wanted

    def _upload(self, model: Decoder, loras: Sequence[Lora], load: WeightLoader) -> PassLora:
        of: dict[str, LoraWeights] = {}
        of_experts: dict[str, ExpertLoraWeights] = {}
        uploaded: set[str] = set()
        for experts in model.expert_stacks():
            if found := self._of_experts(experts, loras, load):
                of_experts[experts.matrix.name] = found
                uploaded |= {module for modules in experts.modules for module in modules}
        routed = {experts.matrix.name for experts in model.expert_stacks()}
        for matrix in model.layer_matrices():
            if matrix.name not in routed and (low := self._of_matrix(matrix, loras, load)):
                of[matrix.name] = low
                uploaded |= {source.removesuffix(".weight") for source in matrix.sources}
        _expect_all_uploaded(loras, uploaded)
        return self._pass_lora(of, of_experts, model.config.experts)

    def _pass_lora(
        self,
        of: Mapping[str, LoraWeights],
        of_experts: Mapping[str, ExpertLoraWeights],
        experts: MoeConfig | None,
    ) -> PassLora:
        """Return the tensors of a pass, with buffers for the widest results per row and per
        assignment."""
        rows = self._memory.max_rows
        n_assignments = rows * experts.experts_per_token if experts else 0
        widths = [(rows, padded(low.a.n), low.b.shape[-1]) for low in of.values()]
        widths += [(n_assignments, padded(low.a.n), low.b.shape[-1]) for low in of_experts.values()]
        lora_a_out, lora_delta = (max(found[0] * found[i] for found in widths) for i in (1, 2))
        zeros = self._memory.zeros
        return PassLora(
            of,
            of_experts,
            zeros("lora.strengths", self._strengths.shape),
            zeros("lora.lora_a_out", (lora_a_out,)),
            zeros("lora.added", (lora_delta,)),
        )

    def _of_matrix(
        self, matrix: Matrix, loras: Sequence[Lora], load: WeightLoader
    ) -> LoraWeights | None:
        stack = matrix.row_layout and LoraStack.of(
            loras, matrix.sources, matrix.row_layout, matrix.k
        )
        if not stack:
            return None
        return LoraWeights(
            load.from_host(f"{matrix.name}.lora_a", stack.a),
            *self._upload_b(matrix.name, stack, load),
        )

    def _of_experts(
        self, experts: ExpertStack, loras: Sequence[Lora], load: WeightLoader
    ) -> ExpertLoraWeights | None:
        name, n = experts.matrix.name, len(experts.modules)
        stack = LoraStack.of_experts(loras, experts.modules, experts.n, experts.matrix.k)
        if not stack:
            return None
        a = load.experts_from_host(f"{name}.lora_a", stack.a, len(stack.a) // n)
        slots = self._shared("lora.slots", np.arange(n, dtype=np.uint32), load)
        return ExpertLoraWeights(a, *self._upload_b(name, stack, load), slots)

    def _upload_b(
        self, name: str, stack: LoraStack, load: WeightLoader
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Upload B, the first row of each output in A, and the end of each adapter's ranks."""
        short = -stack.b.shape[-1] % VEC4
        b = np.pad(stack.b, [(0, 0)] * (stack.b.ndim - 1) + [(0, short)])
        return (
            load.array_from_host(f"{name}.lora_b", b),
            self._shared("lora.first", np.pad(stack.first, (0, short)), load),
            self._shared("lora.ends", stack.ends, load),
        )

    def _shared(self, name: str, numbers: npt.NDArray[np.uint32], load: WeightLoader) -> Tensor:
        """Return one tensor for all layers that have the same numbers. Its name is its own."""
        key, shared = name.encode() + numbers.tobytes(), self._shared_tensors
        if key not in shared:
            shared[key] = load.array_from_host(f"{name}.{len(shared)}", numbers)
        return shared[key]


def _expect_all_uploaded(loras: Sequence[Lora], uploaded: Set[str]) -> None:
    for lora in loras:
        for module in lora.modules:
            if module not in uploaded:
                raise ModelError(
                    f"LoRA adapter {lora.name!r}: it changes {module!r}, which takes no adapters "
                    "in models of this architecture"
                )
