"""Steps and results as bytes, by the engine's own packer and parsers: what engines in other
languages are compared with.

python -m tests.gpu.export.packed_steps FILE.json

    steps    {rows, samples, tables, staged_kv, bytes}: `gpu.step.Step` as JSON (seeds as texts, the
             token −1 is FROM_GPU), the KV blocks of each slot, whether keys and values are staged,
             and the packed bytes in base64
    results  {kind, rows, samples, n_rows, n_samples, bytes, parsed, captured}: the sizes of a plan
             and of the step, the readback buffer in base64, and what is in it
    plan     what these are packed and parsed by: a plan file without its kernels and weights
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from app.tale import model_dir
from gpu.checkpoint.open_model import open_model
from gpu.config import ModelConfig
from gpu.export.plan_builder import build_plan
from gpu.export.plan_format import PlanFile, RecordedStep
from gpu.export.recording import record
from gpu.kv.blocks import blocks_for
from gpu.load_options import LoadOptions
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.plans.plan_cache import SAMPLING
from gpu.runners.results import parse_captured, parse_samples
from gpu.sampling_params import TokenBias
from gpu.step import FROM_GPU, MAX_ROWS, N_CANDIDATES, Row, Sample, Step

PROFILE = "portable"


def reference(folder: Path | None = None) -> dict[str, Any]:
    """Return steps, results and the plan of a model; None: the bundled one."""
    config, checkpoint = open_model(folder or model_dir())
    recording = record(config, checkpoint, LoadOptions(dtype="f16", slots=2), PROFILE)
    plan, _ = build_plan(recording, PROFILE)
    recording.close()
    listed = msgspec.to_builtins(plan)
    for name in ("weights", "buffers", "sources", "kernels", "dispatches"):
        listed[name] = []
    found: dict[str, Any] = msgspec.to_builtins(
        {
            "steps": [_packed(step, staged) for step in steps() for staged in (False, True)],
            "results": list(_results(plan, config)),
            "plan": listed,
        }
    )
    return found


def steps() -> Iterator[Step]:
    """Yield steps with every field set, at the ends of their ranges and between."""
    greedy = Sample(0, 0, 0, 0, temperature=0.0)
    every = Sample(
        row=1, slot=1, seed=2**64 - 1, index=2**31, temperature=0.7, top_k=40, top_p=0.95,
        min_p=0.02, repetition_penalty=1.1, frequency_penalty=-0.3, presence_penalty=1.7,
        logit_bias=(TokenBias(3, 1.5), TokenBias(7, -100.0)), n_drafts=2, verifies=True,
        n_allowed=12, watermark_bias=2.5,
    )  # fmt: skip
    yield Step(())
    yield Step((Row(0, 0, 5),))
    yield Step((Row(0, 40, FROM_GPU),), (replace(greedy, index=3),))
    yield Step((Row(0, 17, FROM_GPU), Row(1, 33, 2)), (replace(greedy, seed=2**40 + 7), every))
    prompt = tuple(Row(1, position, 1000 + position) for position in range(MAX_ROWS))
    yield Step(prompt, (replace(every, row=MAX_ROWS - 1, verifies=False, n_drafts=0),))


def _packed(step: Step, staged: bool) -> dict[str, Any]:
    """Pack a step after another one, whose bytes must not show."""
    tables = [list(range(blocks_for(MAX_ROWS))), list(range(100, 100 + blocks_for(MAX_ROWS)))]
    data = bytearray(STEP_BYTES)
    n = pack_step(step, data, None if staged else tables)
    samples = [asdict(sample) for sample in step.samples]
    for sample in samples:
        sample["seed"] = str(sample["seed"])
    return {
        "rows": [asdict(row) for row in step.rows],
        "samples": samples,
        "tables": tables,
        "staged_kv": staged,
        "bytes": _base64(data[:n]),
    }


def _results(plan: PlanFile, config: ModelConfig) -> Iterator[dict[str, Any]]:
    """Yield readback buffers of random numbers, parsed."""
    rng = np.random.default_rng(0)
    for recorded in plan.plans:
        is_first = recorded.splits == 1 and recorded.rows in (1, 4)
        if recorded.kind in SAMPLING and recorded.samples and is_first:
            yield _result(plan, recorded, config, rng)


def _result(
    plan: PlanFile, recorded: RecordedStep, config: ModelConfig, rng: np.random.Generator
) -> dict[str, Any]:
    n_rows, n_samples = max(1, recorded.rows - 1), recorded.samples
    words = rng.standard_normal(recorded.result_bytes // 4).astype(np.float32).view(np.uint32)
    of_samples = words[: n_samples * plan.results.words].reshape(n_samples, -1)
    fields = [name for name, _ in plan.results.sample]
    for name in ("id", "rank", "n_kept"):
        of_samples[:, fields.index(name)] = rng.integers(0, 2**31, n_samples)
    of_samples[:, fields.index("n_candidates")] = [N_CANDIDATES, 3][:n_samples]
    candidates = of_samples[:, len(fields) :].reshape(n_samples, -1, len(plan.results.candidate))
    candidates[:, :, 0] = rng.integers(0, 2**31, candidates.shape[:2])
    candidates[:, :, 3] = rng.integers(0, len(plan.results.cuts), candidates.shape[:2])
    data, captured = words.tobytes(), None
    if recorded.kept:
        strides = {kept.name: kept.stride for kept in recorded.kept}
        parsed = parse_captured(
            data[recorded.kept[0].at :],
            config,
            recorded.rows,
            n_rows,
            strides["entropy"],
            strides.get("chosen", 0),
            None,
        )
        names = ("embedding", *plan.results.stats_per_layer, "entropy")
        captured = {name: getattr(parsed, name).tolist() for name in names}
    return {
        "kind": recorded.kind,
        "interventions": recorded.interventions,
        "rows": recorded.rows,
        "samples": n_samples,
        "n_rows": n_rows,
        "n_samples": n_samples,
        "bytes": _base64(data),
        "parsed": [
            {**asdict(sample), "candidates": [each._asdict() for each in sample.candidates]}
            for sample in parse_samples(data, n_samples)
        ],
        "captured": captured,
    }


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(reference()))
