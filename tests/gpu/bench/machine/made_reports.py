"""Made reports and results for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from gpu.bench.machine.results import Machine, PartReport, Report, Result
from gpu.info import AdapterInfo
from gpu.tuning.policy_choices import PolicyChoice

CARD = AdapterInfo(
    "A card | of mine", "driver 1", "Vulkan", "discrete GPU", False, ("subgroup",), (),
    {"max-buffer-size": 4 << 30},
)  # fmt: skip


def made_machine(**changes: Any) -> Machine:
    machine = Machine(
        tokenglass="0.1.0",
        engine="abc",
        python="3.11",
        platform="Linux",
        versions={"wgpu": "0.32.0", "wgpu-native": "29", "numpy": "2"},
        host_bytes=None,
        card_bytes=8 << 30,
        adapter=CARD,
        policy=[PolicyChoice("rows", "64 lanes", "default for a GPU")],
    )
    return msgspec.structs.replace(machine, **changes)


def made_report(**parts: list[Result]) -> Report:
    found = {name: PartReport(results, 1.0) for name, results in parts.items()}
    return Report(made_machine(), "2026-01-02 03:04 UTC", 90.0, found)


def right(name: str, **figures: float) -> Result:
    return Result(name, "ok", 0.5, figures)
