"""A report of a machine: whether the engine computes right on one adapter, and how fast.

`tokenglass bench --report FILE` makes one. Each part runs in processes of its own, so that a driver
that crashes or hangs costs one case; the file is written after every part and continued by the next
run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from gpu.bench.machine import store
from gpu.bench.machine.conductor import Conductor
from gpu.bench.machine.results import Machine, Report
from gpu.bench.machine.store import ReportFileError, expect_usable, page_path
from gpu.info import AdapterInfo
from gpu.tuning.policy_choices import PolicyChoice, policy_choices
from gpu.webgpu.device_policy import DISCRETE

__all__ = [
    "Machine",
    "Report",
    "ReportFileError",
    "default_policy",
    "engine_digest",
    "expect_usable",
    "make_report",
    "page_path",
]

GPU = Path(__file__).parents[2]


def make_report(
    path: Path, machine: Machine, adapter: int, minutes: float, tell: Callable[[str], None]
) -> Report:
    """Make a report of the adapter with this number, or continue the one in `path`, for so many
    minutes. `tell` shows a line of progress. Raises ReportFileError; KeyboardInterrupt leaves a
    report of what was done."""
    expect_usable(path)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    report, about = store.begin(path, machine, now)
    if about:
        tell(about)
    shared = machine.adapter.kind != DISCRETE
    free = machine.host_bytes if shared else machine.card_bytes

    def keep() -> None:
        store.write(path, report)

    keep()
    if not report.left():
        tell("nothing is left to measure")
        return report
    try:
        Conductor(report, str(adapter), 60 * minutes, keep, tell, free).run()
    finally:
        keep()
    return report


def default_policy(adapter: AdapterInfo) -> list[PolicyChoice]:
    """Return how the engine uses an adapter before its kernels are tuned, as reports measure it, so
    that they can be compared."""
    return list(policy_choices(adapter, None))


def engine_digest() -> str:
    """Return a digest of the sources of the engine: its Python modules and its shaders."""
    digest = hashlib.sha256()
    files = sorted(path for end in ("py", "wgsl") for path in GPU.rglob(f"*.{end}"))
    for path in files:
        digest.update(path.relative_to(GPU).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
