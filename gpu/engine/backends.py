"""Opening what carries out the steps of a model, in either backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu.checkpoint.packing import FORMATS
from gpu.config import GenerationDefaults
from gpu.errors import DeviceError, ModelError
from gpu.runner import Runner
from gpu.sampling import SamplingParams

BACKENDS = ("wgpu", "torch")
PRODUCTS = ("auto", "float", "bytes")
DTYPES = tuple(FORMATS)

Progress = Callable[[float, str], None]


def open_runner(
    backend: str,
    folder: Path,
    adapter: str | None,
    probe: bool,
    keep_bytes: int,
    expert_slots: int | None,
    products: str,
    **options: Any,
) -> Runner:
    """`options` are those of both. Imported here, so that neither backend needs the other's
    packages."""
    if backend == "torch":
        try:
            from gpu.pytorch.runner import TorchRunner
        except ModuleNotFoundError as error:
            raise DeviceError(
                f"--backend torch needs PyTorch ({error}); install it with "
                "`pip install 'tokenglass[torch]'`"
            ) from error
        runner: Runner = TorchRunner.load(folder, **options)
        return runner
    from gpu.runners.wgpu_runner import WgpuRunner

    return WgpuRunner.load(
        folder,
        adapter=adapter,
        probe=probe,
        keep_bytes=keep_bytes,
        expert_slots=expert_slots,
        products=products,
        **options,
    )


def recommended_settings(recommended: GenerationDefaults) -> SamplingParams:
    """The settings that the model's makers recommend over ours."""
    values = {
        name: value
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        if (value := getattr(recommended, name)) is not None
    }
    return SamplingParams(**values)


def check_expert_slots(n: int, backend: str) -> None:
    """Raises ModelError for a number that is none, and where they would mean nothing."""
    if n < 1:
        raise ModelError(f"expert_slots should be 1 or more, but is {n}")
    if backend == "torch":
        raise ModelError(
            "--expert-slots is for --backend wgpu: PyTorch runs in the host's memory, where all "
            "experts lie; leave it out"
        )


def check_products(products: str, backend: str) -> None:
    """Raises ModelError for what there is not, or not there."""
    check_choice("products", products, PRODUCTS)
    if backend == "torch" and products == "bytes":
        raise ModelError(
            "--products bytes is for --backend wgpu: PyTorch computes with float32; leave it out"
        )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ModelError for a value that is none of the choices."""
    if value not in choices:
        raise ModelError(f"{name} {value!r} is not supported; supported: {', '.join(choices)}")
