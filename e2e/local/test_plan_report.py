"""The plan of a step that the page lists from a plan file is that which the server lists."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Error, Page

from gpu.checkpoint.open_model import open_model
from gpu.export import recording
from gpu.export.plan_builder import build_plan
from gpu.export.recording import Recording, record
from gpu.load_options import LoadOptions
from gpu.ops.cost import StepSize
from gpu.plans.plan_cache import RecordedPlan
from gpu.plans.report_builder import plan_report
from gpu.webgpu.compiler import Compiler
from tests.golden import trained_models
from tests.gpu.models import random_models

pytestmark = pytest.mark.quick

REPORT = """async ([given, steps]) => {
  const { checkPlan } = await import("/static/js/local/gpu/check-plan.js");
  const { PlanLookup } = await import("/static/js/local/gpu/plan-lookup.js");
  const { planReport } = await import("/static/js/local/inspection/plan-report.js");
  const plan = checkPlan(JSON.parse(given));
  const lookup = new PlanLookup(plan);
  return JSON.stringify(steps.map((step) => planReport(plan, lookup, step).report));
}"""
LENGTH = re.compile(r"(var<storage[^>]*> \w+: array<\w+), \d+(>;)")
"""Length of an array in a storage buffer; sources of a plan file declare it."""
STEPS = [(1, 0), (1, 37), (2, 100), (100, 13)]

Case = tuple[str, LoadOptions]


def recorded_of(monkeypatch: pytest.MonkeyPatch, name: str, **options: Any) -> Recording:
    monkeypatch.setattr(Compiler, "begin", lambda *args: Future())  # no dispatch runs here
    monkeypatch.setattr(recording, "ROW_BUCKETS", (1, 2, 16, 128))
    folder = random_models.folder(name) if name else trained_models()[0].folder
    return record(*open_model(folder), LoadOptions(slots=2, **options), "portable")


def plan_of(recorded: Recording, rows: int, context: int) -> RecordedPlan:
    """Return the plan that the engine takes for a step of one sequence with one sample."""
    return recorded.loaded.plans.plan(rows, 1, "plain", context + rows)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {"dtype": "q4", "kv_dtype": "q8"}),
        ("gemma3", {"dtype": "f16"}),
        (random_models.ONE_OF_EACH_MOE[0], {"dtype": "q8"}),
    ],
    ids=["tale", "windows", "experts"],
)
def test_a_step_is_listed_as_the_server_does(
    loaded: Page, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    """Every dispatch with its bindings and figures, every kernel with its source but for lengths of
    arrays."""
    recorded = recorded_of(monkeypatch, name, **options)
    file = msgspec.json.encode(build_plan(recorded, "portable")[0]).decode()
    steps = [{"rows": rows, "context": context} for rows, context in STEPS]
    found = json.loads(loaded.evaluate(REPORT, [file, steps]))
    for mine, (rows, context) in zip(found, STEPS, strict=True):
        size = StepSize(rows, 1, context)
        report = plan_report(plan_of(recorded, rows, context), size)
        want = msgspec.json.decode(msgspec.json.encode(report))
        assert mine.keys() == want.keys()
        for kernel in mine["kernels"]:
            kernel["source"], n_lengths = LENGTH.subn(r"\1\2", kernel["source"])
            assert n_lengths
        for name in ("dispatches", "kernels"):
            for i, (one, other) in enumerate(zip(mine[name], want[name], strict=True)):
                assert one == other, (name, i)
        assert mine == want
        assert mine["flops"] > 0
    recorded.close()


@pytest.mark.parametrize(
    ("rows", "before", "message"),
    [
        (0, 0, "n_rows is 0, expected 1 to 128"),
        (129, 0, "n_rows is 129, expected 1 to 128"),
        (1, -1, "context is -1, expected 0 to 99"),
        (2, 99, "context is 99, expected 0 to 98"),
    ],
)
def test_a_step_that_there_is_not_is_refused(
    loaded: Page, rows: int, before: int, message: str
) -> None:
    with pytest.raises(Error, match=message):
        loaded.evaluate(
            """async (step) => {
              const { planReport } = await import("/static/js/local/inspection/plan-report.js");
              planReport({ limits: { max_rows: 128, context: 100 } }, null, step);
            }""",
            {"rows": rows, "context": before},
        )
