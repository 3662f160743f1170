"""Matching of an adapter's tensors to modules of the base, checked against their shapes and the
targets in its config."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpu.checkpoint.reader import Checkpoint
from gpu.errors import ModelError
from gpu.files.json_object import shown
from gpu.lora.config import LoraConfig
from gpu.lora.fused import ExpertSlice, is_swapped
from gpu.lora.targets import LoraTarget

TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight", re.ASCII)
BASE_LAYER = ".base_layer"
"""Infix for the second of two adapted parameters of a module, which PEFT saves as one inside the
other."""
EXPERTS = ".experts"


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The two matrices of a module, by their names in the file.

    scale         α / r
    expert_slice  the module's part of matrices that hold all experts of a layer
    """

    a: str
    b: str
    rank: int
    scale: float
    expert_slice: ExpertSlice | None = None


def match_tensors(
    file: Checkpoint,
    lora_config: LoraConfig,
    targets: Sequence[LoraTarget],
    in_base: Callable[[str], str],
) -> dict[str, LoraPair]:
    """Return the matrices of every changed module of the base.

    targets  modules that adapters may change
    in_base  returns a module's name in the base for its name in PEFT

    Raises ModelError for an adapter that is damaged, unsupported, or made for another base.
    """
    by_name, pairs = {linear.module: linear for linear in targets}, dict[str, LoraPair]()
    for module in _adapted_modules(file):
        if module.removesuffix(BASE_LAYER).endswith(EXPERTS):
            found = _expert_pairs(file, module, targets, lora_config)
        else:
            name = in_base(module)
            found = {name: _pair(file, module, by_name.get(name), lora_config)}
        if twice := pairs.keys() & found.keys():
            raise ModelError(f"it changes {shown(min(twice))} twice; the file is damaged")
        pairs |= found
    _expect_whole(pairs, targets, lora_config)
    return pairs


def names_to_match(file: Checkpoint, targets: Sequence[LoraTarget]) -> set[str]:
    """Return the names that `match_tensors` asks the config about: of modules and parameters."""
    modules = {match[1] for name in file.names() if (match := TENSOR.fullmatch(name))}
    modules |= {name for linear in targets for name in (linear.module, linear.parameter)}
    return modules | {f"{module}.weight" for module in modules}


def _adapted_modules(file: Checkpoint) -> list[str]:
    """Return the modules with both matrices. Raises ModelError for any other tensor."""
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


def _pair(
    file: Checkpoint, module: str, linear: LoraTarget | None, lora_config: LoraConfig
) -> LoraPair:
    if linear is None:
        raise ModelError(
            f"it changes {shown(module)}; expected only matrices of attention, MLP, experts and "
            "routers that the base has, no embeddings or heads"
        )
    # Patterns of ranks and alphas match the target: a module, or its weight as a parameter.
    targeted = module if lora_config.adapts(module, linear.layer) else f"{module}.weight"
    if targeted != module and targeted not in lora_config.target_parameters:
        raise ModelError(
            f"its file changes {shown(module)}, but its config does not target it; the files do "
            "not belong together"
        )
    (a, b), rank = _tensors(module), lora_config.rank(targeted)
    for name, shape in ((a, (rank, linear.n_in)), (b, (linear.n_out, rank))):
        if file.shape(name) != shape:
            raise ModelError(
                f"tensor {shown(name)} has shape {file.shape(name)}, but base and config require "
                f"{shape}"
            )
    _expect_readable(file, a, b)
    return LoraPair(a, b, rank, lora_config.scale(targeted))


def _expert_pairs(
    file: Checkpoint, module: str, targets: Sequence[LoraTarget], lora_config: LoraConfig
) -> dict[str, LoraPair]:
    """Return the matrices of all experts of a layer. Only shapes tell which of their two parameters
    they belong to."""
    (a, b), experts = _tensors(module), module.removesuffix(BASE_LAYER)
    parameters: dict[str, list[LoraTarget]] = {}
    for linear in targets:
        if linear.parameter.rpartition(".")[0] == experts:
            parameters.setdefault(linear.parameter, []).append(linear)
    targeted = {
        name: of for name, of in parameters.items() if name in lora_config.target_parameters
    }
    if not targeted:
        raise ModelError(f"its config does not target the parameters of {shown(experts)}")
    for parameter, linears in targeted.items():
        found = _of_parameter((file.shape(a), file.shape(b)), parameter, linears, lora_config)
        if found:
            _expect_readable(file, a, b)
            rank, scale = lora_config.rank(parameter), lora_config.scale(parameter)
            return {
                name: LoraPair(a, b, rank, scale, expert_slice)
                for name, expert_slice in found.items()
            }
    raise ModelError(
        f"tensor {shown(a)} has shape {file.shape(a)} and its lora_B {file.shape(b)}; that fits "
        f"none of {', '.join(targeted)} with this base and config"
    )


def _of_parameter(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    parameter: str,
    linears: Sequence[LoraTarget],
    lora_config: LoraConfig,
) -> dict[str, ExpertSlice]:
    """Return the slices of a parameter's modules in A and B of these shapes; none if the shapes
    belong to another parameter.

    `linears`: expert by expert, gate before up.
    """
    n = len({linear.module.rpartition(".")[0] for linear in linears})
    each, n_out = len(linears) // n, linears[0].n_out
    n_ranks = n * lora_config.rank(parameter)
    swapped = is_swapped(*shapes, n_ranks, each * n_out, linears[0].n_in, lora_config.peft_version)
    if swapped is None:
        return {}
    halves = [slice(i * n_out, (i + 1) * n_out) for i in range(each)]
    return {
        linear.module: ExpertSlice(i // each, n, halves[i % each], swapped)
        for i, linear in enumerate(linears)
    }


def _tensors(module: str) -> tuple[str, str]:
    a, b = (f"base_model.model.{module}.lora_{half}.weight" for half in "AB")
    return a, b


def _expect_readable(file: Checkpoint, *names: str) -> None:
    for name in names:
        if not file.is_readable(name):
            raise ModelError(
                f"tensor {shown(name)} is {file.dtype(name)}; expected F32, F16 or BF16"
            )


def _expect_whole(
    pairs: Mapping[str, LoraPair], targets: Sequence[LoraTarget], lora_config: LoraConfig
) -> None:
    """Raise ModelError for targeted modules without matrices. Modules that newer transformers does
    not have may be missing, if they are missing in all layers."""
    changed = {_kind(linear) for linear in targets if linear.module in pairs}
    for linear in targets:
        parameters = linear.parameter, f"{linear.module}.weight"
        targeted = any(name in lora_config.target_parameters for name in parameters) or (
            lora_config.adapts(linear.module, linear.layer)
            and (not linear.is_optional or _kind(linear) in changed)
        )
        if linear.module not in pairs and targeted:
            raise ModelError(
                f"its config targets {shown(linear.module)}, but its file has no tensors for it; "
                "the file is damaged, or made for another base"
            )


def _kind(linear: LoraTarget) -> tuple[str, str]:
    return linear.op, linear.module.rpartition(".")[2]
