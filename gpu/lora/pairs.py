"""Which tensors of an adapter's file change which modules of the base, judged by their shapes and
by what its config targets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpu.checkpoint.reader import Checkpoint
from gpu.errors import ModelError
from gpu.json_object import shown
from gpu.lora.base import Linear
from gpu.lora.config import LoraConfig
from gpu.lora.fused import OfAll, is_turned

TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight", re.ASCII)
BASE_LAYER = ".base_layer"
"""Of two parameters of a module PEFT saves one as inside of the other."""
EXPERTS = ".experts"


@dataclass(frozen=True, slots=True)
class Pair:
    """The two matrices of a module, by their names in the file; `scale`: α / r. `of_all`: where
    they lie in those of all experts of a layer."""

    a: str
    b: str
    rank: int
    scale: float
    of_all: OfAll | None = None


def judged_pairs(
    file: Checkpoint,
    wanted: LoraConfig,
    there: Sequence[Linear],
    in_base: Callable[[str], str],
) -> dict[str, Pair]:
    """By modules of the base, of which `there` can be changed; `in_base`: their names there by
    those of PEFT. Raises ModelError for what is damaged, not supported, or not of this base."""
    by_name, pairs = {linear.module: linear for linear in there}, dict[str, Pair]()
    for module in _adapted(file):
        if module.removesuffix(BASE_LAYER).endswith(EXPERTS):
            found = _pairs_of_all(file, module, there, wanted)
        else:
            name = in_base(module)
            found = {name: _pair(file, module, by_name.get(name), wanted)}
        if twice := pairs.keys() & found.keys():
            raise ModelError(f"it changes {shown(min(twice))} twice; the file is damaged")
        pairs |= found
    _expect_whole(pairs, there, wanted)
    return pairs


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


def _pair(file: Checkpoint, module: str, linear: Linear | None, wanted: LoraConfig) -> Pair:
    if linear is None:
        raise ModelError(
            f"it changes {shown(module)}, but adapters are supported for the matrices of "
            "attention, MLP, experts and routers that the base has, not for embeddings or heads"
        )
    # Patterns of ranks and alphas match what is targeted: a module, or its weight as a parameter.
    targeted = module if wanted.adapts(module, linear.layer) else f"{module}.weight"
    if targeted != module and targeted not in wanted.parameters:
        raise ModelError(f"its config does not target {shown(module)}, its file does")
    (a, b), rank = _tensors(module), wanted.rank(targeted)
    for name, shape in ((a, (rank, linear.n_in)), (b, (linear.n_out, rank))):
        if file.shape(name) != shape:
            raise ModelError(
                f"tensor {shown(name)} has shape {file.shape(name)}, but base and config make it "
                f"{shape}"
            )
    _expect_readable(file, a, b)
    return Pair(a, b, rank, wanted.scale(targeted))


def _pairs_of_all(
    file: Checkpoint, module: str, there: Sequence[Linear], wanted: LoraConfig
) -> dict[str, Pair]:
    """Of all experts of a layer. Which of their two parameters it is, only shapes tell."""
    (a, b), experts = _tensors(module), module.removesuffix(BASE_LAYER)
    parameters: dict[str, list[Linear]] = {}
    for linear in there:
        if linear.parameter.rpartition(".")[0] == experts:
            parameters.setdefault(linear.parameter, []).append(linear)
    targeted = {name: of for name, of in parameters.items() if name in wanted.parameters}
    if not targeted:
        raise ModelError(f"its config does not target the parameters of {shown(experts)}")
    for parameter, linears in targeted.items():
        found = _of_parameter((file.shape(a), file.shape(b)), parameter, linears, wanted)
        if found:
            _expect_readable(file, a, b)
            rank, scale = wanted.rank(parameter), wanted.scale(parameter)
            return {name: Pair(a, b, rank, scale, of_all) for name, of_all in found.items()}
    raise ModelError(
        f"tensor {shown(a)} has shape {file.shape(a)} and its lora_B {file.shape(b)}; base and "
        f"config make that of none of {', '.join(targeted)}"
    )


def _of_parameter(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    parameter: str,
    linears: Sequence[Linear],
    wanted: LoraConfig,
) -> dict[str, OfAll]:
    """By modules, where they lie in A and B of these shapes; none where these are of another
    parameter. `linears`: expert by expert, gate before up."""
    n = len({linear.module.rpartition(".")[0] for linear in linears})
    each, n_out = len(linears) // n, linears[0].n_out
    n_ranks = n * wanted.rank(parameter)
    turned = is_turned(*shapes, n_ranks, each * n_out, linears[0].n_in, wanted.version)
    if turned is None:
        return {}
    halves = [slice(i * n_out, (i + 1) * n_out) for i in range(each)]
    return {
        linear.module: OfAll(i // each, n, halves[i % each], turned)
        for i, linear in enumerate(linears)
    }


def _tensors(module: str) -> tuple[str, str]:
    a, b = (f"base_model.model.{module}.lora_{half}.weight" for half in "AB")
    return a, b


def _expect_readable(file: Checkpoint, *names: str) -> None:
    for name in names:
        if not file.is_readable(name):
            raise ModelError(f"tensor {shown(name)} is {file.dtype(name)}, not F32, F16 or BF16")


def _expect_whole(pairs: Mapping[str, Pair], there: Sequence[Linear], wanted: LoraConfig) -> None:
    """What newer transformers has no module of may be missing, if it is so in all layers."""
    changed = {_sort(linear) for linear in there if linear.module in pairs}
    for linear in there:
        parameters = linear.parameter, f"{linear.module}.weight"
        targeted = any(name in wanted.parameters for name in parameters) or (
            wanted.adapts(linear.module, linear.layer)
            and (not linear.is_leavable or _sort(linear) in changed)
        )
        if linear.module not in pairs and targeted:
            raise ModelError(
                f"its config targets {shown(linear.module)}, but its file has nothing for it; "
                "the file is damaged, or of another base"
            )


def _sort(linear: Linear) -> tuple[str, str]:
    return linear.op, linear.module.rpartition(".")[2]
