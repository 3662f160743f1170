"""Measure the engine's distance from transformers by architecture and storage type.

The models have random weights. Rewrites the table of docs/models.md; fails if a bound is exceeded.

python -m tests.accuracy docs/models.md
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from transformers.utils import logging

from gpu.bench.table import markdown, replace_section
from gpu.checkpoint.packing import FORMATS
from gpu.models.registry import MODELS
from gpu.reference.divergence import mean_kl
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.models import random_llama, random_models
from tests.gpu.models.logit_checks import KL_OF_CACHED_HALVES, OF_A_DEEP_MODEL
from tests.gpu.models.random_models import Reference

N_TOKENS = 40
EXACT = "f32"
ROUNDED = tuple(name for name in FORMATS if name != EXACT)


def cases() -> dict[str, list[Path]]:
    """Return model folders of every architecture, in different shapes."""
    found = defaultdict(list, llama=[random_llama.folder(name) for name in random_llama.NAMES])
    for name in (*random_models.NAMES, *random_models.WITH_EXPERTS):
        found[random_models.settings_of(name)["model_type"]].append(random_models.folder(name))
    missing = set(MODELS) - set(found)
    if missing:
        raise ValueError(
            f"no case of {', '.join(sorted(missing))} in tests/gpu/models/model_cases.py"
        )
    return dict(found)


def logit_error(device: Device, folder: Path) -> float:
    """Return the largest error of a logit relative to the largest logit, with float32 weights."""
    got, want = _both(device, folder, EXACT)
    return float(np.abs(got - want).max() / np.abs(want).max())


def divergence(device: Device, folder: Path, dtype: str) -> float:
    """Return the mean KL divergence, in nats, from transformers with the same rounded weights."""
    got, want = _both(device, folder, dtype)
    return float(mean_kl(want, got))


def _both(device: Device, folder: Path, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the engine's logits and the reference's, (N_TOKENS, vocab_size)."""
    runner = driving.load(device, folder, dtype, n_slots=1)
    ids = [id % runner.config.vocab_size for id in random_models.ids(N_TOKENS)]
    return driving.all_logits(runner, ids), Reference(folder, dtype).logits(ids)


def table() -> str:
    """Return Markdown with a row per architecture: the worst of all its models in float32, and its
    first one in the other types."""
    logging.disable_progress_bar()
    device = Device.open()
    head = ["architecture", "models", f"{EXACT}, ≤ {OF_A_DEEP_MODEL:.0e}"]
    head += [f"{dtype}, ≤ {KL_OF_CACHED_HALVES:.0e}" for dtype in ROUNDED]
    rows = []
    for architecture, folders in cases().items():
        errors = [max(logit_error(device, folder) for folder in folders)]
        errors += [divergence(device, folders[0], dtype) for dtype in ROUNDED]
        bounds = [OF_A_DEEP_MODEL] + [KL_OF_CACHED_HALVES] * len(ROUNDED)
        for label, error, bound in zip(head[2:], errors, bounds, strict=True):
            if not error <= bound:
                raise SystemExit(f"{architecture}: {error:.1e} is not {label}")
        rows.append([architecture, str(len(folders)), *(f"{error:.0e}" for error in errors)])
        print(*rows[-1], sep="  ", flush=True)
    return "\n".join([f"On {device.info.name}, {device.info.driver}:", "", *markdown(head, rows)])


if __name__ == "__main__":
    document = Path(sys.argv[1])
    measured = table()
    text = replace_section(document.read_text("utf-8"), "accuracy", measured)
    document.write_text(text, "utf-8")
