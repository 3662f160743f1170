"""Every kernel that real models run on a GPU has an op test, under each GPU's policy.

`tests.gpu.ops.real_models` lists the variants of shaders in the plans of real models; for each
there is a small check, which runs the same variant beside its NumPy twin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gpu.checkpoint.packing import FORMATS
from gpu.checks import attention, kv_writes, matmul, quantize_kv
from gpu.checks import ops as op_checks
from gpu.checks.difference import WrongResult
from gpu.checks.kv_cache import LayerCache
from gpu.checks.rig import Rig
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.null_device import open_null_device
from gpu.webgpu.plan import Recorder
from tests.gpu.ops.real_models import ADAPTERS, Use, Variant, uses, variant_of
from tests.gpu.ops.variant_cases import OTHERS, Check, check_name, check_of

TOO_LARGE = 200_000
"""Columns of a product whose workgroups have several tiles only because there are so many columns
(the output head of Gemma): no small check has its variant."""


KINDS = tuple(enumerate(ADAPTERS))


@cache
def variants(kind: str) -> dict[Variant, Use]:
    """Return the variants of an adapter that have checks of their own."""
    return uses(ADAPTERS[kind])


class Recorded(Exception):
    """A check has recorded its op."""


class RecordingRig(Rig):
    """Rig on a device that is not there. With `ends`, a check ends once its op is recorded."""

    def __init__(self, device: Device, *, ends: bool = True) -> None:
        super().__init__(device)
        self._ends = ends
        self.recorded: set[Variant] = set()

    def run(self, record: Callable[[Recorder], None]) -> None:
        rec = Recorder(self.device, self.kernels)
        record(rec)
        self.recorded |= {variant_of(dispatch.kernel) for dispatch in rec.plan.dispatches}
        if self._ends:
            raise Recorded

    def compare(self, *_: object) -> None: ...

    def expect(self, what: str, is_right: object) -> None: ...


def is_too_large(use: Use) -> bool:
    return int(use.dispatch.kernel.constants.get("N", 0)) > TOO_LARGE


def checks(kind: str) -> dict[Variant, tuple[Use, Check]]:
    """Return the variants of an adapter with their checks, but for those that are the variants of
    the checks of every device."""
    policy = DevicePolicy.of(ADAPTERS[kind])
    return {
        variant: (use, check_of(use, policy))
        for variant, use in variants(kind).items()
        if variant[0] not in OTHERS and not is_too_large(use)
    }


@pytest.fixture
def plain_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checks be recorded with zeros: drawing numbers takes longer than recording."""
    for module in (attention, kv_writes, matmul, quantize_kv):
        monkeypatch.setattr(module, "normal", lambda rng, *shape: np.zeros(shape, np.float32))
    monkeypatch.setattr(LayerCache, "fill", lambda *_: None)


@pytest.mark.ci
@pytest.mark.usefixtures("plain_numbers")
@pytest.mark.parametrize(
    "kind", [kind if i == 0 else pytest.param(kind, marks=pytest.mark.slow) for i, kind in KINDS]
)
def test_every_variant_of_real_plans_is_that_of_a_check(kind: str) -> None:
    """Record both and compare; nothing runs."""
    rig = RecordingRig(open_null_device(ADAPTERS[kind]))
    found, recorded = checks(kind), set[Variant]()
    for variant, (_, check) in found.items():
        if variant not in recorded:
            with pytest.raises(Recorded):
                check(rig)
            recorded |= rig.recorded
    missing = [str(use) for variant, (use, _) in found.items() if variant not in recorded]
    assert not missing, f"{len(missing)} of {len(found)}: {missing[:8]}"
    rig.kernels.close()


@pytest.mark.ci
@pytest.mark.usefixtures("plain_numbers")
def test_the_others_are_variants_of_the_checks_of_every_device() -> None:
    """Of ops with few variants: the same checks, whatever the sizes."""
    rig = RecordingRig(open_null_device(ADAPTERS["discrete"]), ends=False)
    used = {v: use for v, use in variants("discrete").items() if v[0] in OTHERS}
    for name in {check_name(use) for use in used.values()}:
        op_checks.CHECKS[name](rig)
    assert {v[0] for v in used} == set(OTHERS)
    missing = [str(use) for variant, use in used.items() if variant not in rig.recorded]
    assert not missing, missing
    rig.kernels.close()


def test_those_that_are_too_large_are_known() -> None:
    large = {use.model for use in variants("discrete").values() if is_too_large(use)}
    assert large == {"gemma3_270m", "gemma3_1b"}


# ---- on the device ------------------------------------------------------------------------------


@pytest.fixture
def as_gpu(device: Device) -> Callable[[str], Rig]:
    """Return what makes a rig on this device, posing as one of `ADAPTERS`."""

    def make(kind: str) -> Rig:
        info = replace(ADAPTERS[kind], limits=device.info.limits, features=device.info.features)
        policy = DevicePolicy.of(ADAPTERS[kind])
        posing = replace(device, info=info, tuning=policy.tuning, policy=policy)
        return Rig(posing, Kernels(posing))

    return make


def is_quick(use: Use) -> bool:
    """Return whether a check runs in every run of the tests: decoding in float32, whose variants
    depend on the heads and on the lanes of a product."""
    c = use.dispatch.kernel.constants
    plain = (use.dtype, use.kv_dtype, use.n_rows) == ("f32", "f32", 1) and not c.get("CAPTURE")
    return plain and bool(c.get("NORM") or c.get("PARTIAL") or "HEAD_VEC4S" in c)


def run(rig: Rig, found: dict[Variant, tuple[Use, Check]]) -> None:
    wrong = []
    for use, check in found.values():
        rig.found.clear()
        try:
            check(rig)
        except WrongResult as error:
            wrong.append(f"{use}: {error}")
        assert sum(found.numbers for found in rig.found)
    assert not wrong, "\n".join(wrong[:8])


@pytest.mark.slow
@pytest.mark.parity
def test_decoding_in_float32_is_right_with_every_head_size_and_every_number_of_lanes(
    as_gpu: Callable[[str], Rig],
) -> None:
    """Attention of one row over 32 splits, their merge, and products that fold in a norm."""
    quick = {v: found for v, found in checks("discrete").items() if is_quick(found[0])}
    heads = {use.config.head_dim for use, _ in quick.values()}
    normed = [use for use, _ in quick.values() if use.dispatch.kernel.constants.get("NORM")]
    assert (heads, {_lanes(use) for use in normed}) == ({64, 128, 256}, {36, 40, 48, 56, 64})
    run(as_gpu("discrete"), quick)


def _lanes(use: Use) -> int:
    policy, c = DevicePolicy.of(ADAPTERS["discrete"]), use.dispatch.kernel.constants
    return policy.tuning.tile(1, int(c["N"]), int(c["BLOCKS"])).split_k


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    "op",
    [
        "matmul",
        "qkv",
        "attention",
        "attention_merge",
        "qk_norm_rope",
        "quantize_kv",
        "rms_norm_split",
        "sample",
    ],
)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("i", "kind"), KINDS)
def test_every_variant_of_real_plans_is_right(
    as_gpu: Callable[[str], Rig], i: int, kind: str, dtype: str, op: str
) -> None:
    """Those of an adapter that the ones before it do not have."""
    before = [variants(other) for _, other in KINDS[:i]]
    own = {
        variant: found
        for variant, found in checks(kind).items()
        if (variant[0], found[0].dtype) == (op, dtype)
        and not any(variant in others for others in before)
    }
    run(as_gpu(kind), own)
