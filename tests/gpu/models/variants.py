"""Every specialisation of every shader that the plans of different models use."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from gpu.kv.formats import CHUNK
from gpu.plans.plan_cache import ROW_BUCKETS, SAMPLE_BUCKETS
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SeedingScheme
from gpu.step import KvVariant
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernel
from tests.gpu.engine import driving
from tests.gpu.lora import random_loras
from tests.gpu.models import random_llama, random_models
from tests.gpu.ops.rig import as_kind

MODELS = {
    "odd172_bias": ("f32", "q4"),
    "head128_llama3": ("f16",),
    "derived_head": ("q8",),
    "long_context": ("f16",),
}
"""Models of different sizes, and their storage types."""
CACHES = {"gqa8": ("q8", "q8q4"), "head80_theta": ("rotated4",)}
"""Models of different heads, and their KV formats."""
OTHERS = {
    "gemma3": ("f16", 1),
    "gpt2_inner": ("f32", 1),
    "qwen2_moe": ("q8", 1),
    "mixtral": ("q4", 8),
    "olmoe_normalised_bias": ("f16", 64),
}
"""Models with all ops that Llama lacks: storage type and rows. Eight rows share experts, and 64 a
tile of them in workgroup memory."""

Q8_ACTIVATIONS = {"odd36": "q8", "head100_all_bias": "q4"}
Q8_EXPERTS = {"mixtral": "q8", "olmoe_normalised_bias": "q4"}
"""Models with q8 activations, and their storage types."""
Q8_ROWS = (1, 8, 64)


def recorded(device: Device, *, software: bool, unrolls: bool = False) -> list[Kernel]:
    """Return the kernels of plans of every kind in all buckets, with every storage type, as for a
    software device or a real GPU. `unrolls`: loops are unrolled, as for a discrete one."""
    posing = as_kind(device, software)
    posing = replace(posing, tuning=replace(posing.tuning, unrolls_loops=unrolls))
    found: dict[tuple[str, str], Kernel] = {}
    for name, dtypes in MODELS.items():
        for dtype in dtypes:
            loras = {"all": random_loras.folder(name, "all")} if name == random_loras.LLAMA else {}
            folder, kind = random_llama.folder(name), posing
            if not software:  # sample as from a large vocabulary
                kind = replace(kind, policy=replace(kind.policy, bins_from=1))
            runner = driving.load(kind, folder, dtype, loras=loras)
            found |= {(k.source, repr(k.constants)): k for k in _kernels(runner)}
    for name, (dtype, n_rows) in OTHERS.items():
        mixture = name in random_models.WITH_EXPERTS
        loras = {"all": random_loras.folder(name, "all")} if mixture else {}
        folder, kind = random_models.folder(name), posing
        runner = driving.load(kind, folder, dtype, loras=loras)
        plans = [runner.plans.plan(n_rows, 1, "captured").plan]
        if mixture:
            plans.append(runner.plans.plan(n_rows, 0, "routes").plan)
            plans.append(runner.plans.plan(n_rows, 0, "plain", loras=True).plan)
        kernels = [dispatch.kernel for plan in plans for dispatch in plan.dispatches]
        found |= {(k.source, repr(k.constants)): k for k in kernels}
    folders = {random_llama.folder(name): dtype for name, dtype in Q8_ACTIVATIONS.items()}
    folders |= {random_models.folder(name): dtype for name, dtype in Q8_EXPERTS.items()}
    for folder, dtype in folders.items():
        kind = replace(posing, tuning=replace(posing.tuning, q8_activations=True))
        plans = driving.load(kind, folder, dtype).plans
        kernels = [d.kernel for n in Q8_ROWS for d in plans.plan(n, 1, "logits").plan.dispatches]
        found |= {(k.source, repr(k.constants)): k for k in kernels}
    for name, kv_dtypes in CACHES.items():
        for kv in kv_dtypes:
            folder = random_llama.folder(name)
            runner = driving.load(posing, folder, "f16", kv_dtype=kv)
            plans = (runner.plans.plan(1, 0, "weights").plan, runner.kv_shift.plan())
            kernels = [dispatch.kernel for plan in plans for dispatch in plan.dispatches]
            found |= {(k.source, repr(k.constants)): k for k in kernels}
    return sorted(found.values(), key=lambda kernel: kernel.name)


def one_a_source(kernels: list[Kernel]) -> list[Kernel]:
    """Return one kernel of each source: the one with most of its constants switched on."""
    return list({k.source: k for k in sorted(kernels, key=n_switched_on)}.values())


def n_switched_on(kernel: Kernel) -> int:
    """Return how many of its yes-or-no constants are yes."""
    return sum(value is True for value in kernel.constants.values())


def _kernels(runner: WgpuRunner) -> list[Kernel]:
    """Return the kernels of a runner. Those of inspection, interventions and adapters are the same
    in all buckets, so one plan of each is enough; samples change only what follows the layers."""
    plan, limits, kinds = runner.plans.plan, runner.limits, ("plain", "captured", "logits")
    sizes = [
        *((rows, 1, context) for rows in ROW_BUCKETS for context in (1, limits.context)),
        *((limits.max_rows, samples, 1) for samples in SAMPLE_BUCKETS),
    ]
    plans = [
        plan(rows, samples, kind, context).plan
        for rows, samples, context in sizes
        if rows <= limits.max_rows and samples <= limits.max_samples
        for kind in kinds
    ]
    plans.append(runner.plans.plan(1, 0, "weights", interventions=True, masked=True).plan)
    if runner.config.head_dim % CHUNK == 0:
        plans.append(runner.plans.plan(1, 0, "weights", kv=KvVariant("q8", "q4")).plan)
    for scheme in get_args(SeedingScheme):
        plans.append(runner.plans.plan(1, 1, "plain", watermark=scheme).plan)
    plans.append(runner.kv_shift.plan())
    if runner.loras:
        plans.append(runner.plans.plan(1, 0, "plain", loras=True).plan)
    return [dispatch.kernel for plan in plans for dispatch in plan.dispatches]
