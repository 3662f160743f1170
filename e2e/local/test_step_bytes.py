"""The browser packs steps and reads results as the server's engine does, to the byte."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from e2e.local.local_engine import LocalEnginePage
from gpu.sampling_params import GREEDY_BELOW
from tests.gpu.export import packed_steps

pytestmark = pytest.mark.quick

PACK = """async ({ plan, steps }) => {
  const { StepBuffer } = await import("/static/js/local/gpu/step-buffer.js");
  const asked = ({ row, slot, seed, index, n_drafts, verifies, n_allowed, ...settings }) => {
    const params = { ...settings, seed: BigInt(seed), first_index: 0 };
    return { row, slot, index, n_drafts, verifies, n_allowed, params };
  };
  return steps.map(({ rows, samples, tables, staged_kv }) => {
    const buffer = new StepBuffer({ step: { ...plan.step, staged_kv }, limits: plan.limits });
    return btoa(String.fromCharCode(...buffer.pack(rows, samples.map(asked), tables)));
  });
}"""

PARSE = """async ({ plan, results }) => {
  const { Captured, sampleOf } = await import("/static/js/local/gpu/results.js");
  const rowsOf = (data, { kind, rows, samples, interventions, n_rows: n }) => {
    const key = (each) => [each.kind, each.rows, each.samples, each.interventions ?? false].join();
    const wanted = key({ kind, rows, samples, interventions });
    const recorded = plan.plans.find((each) => each.splits === 1 && key(each) === wanted);
    const captured = new Captured(data, recorded, plan);
    return Array.from({ length: n }, (_, row) => captured.row(row, row, n));
  };
  return results.map((result) => {
    const data = Uint8Array.from(atob(result.bytes), (c) => c.charCodeAt(0)).buffer;
    const parse = (_, i) => sampleOf(data, i, plan.results);
    const samples = Array.from({ length: result.n_samples }, parse);
    return { samples, rows: result.captured ? rowsOf(data, result) : [] };
  });
}"""


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """Steps and results of the bundled model, by the server's own packer and parsers."""
    found: dict[str, Any] = json.loads(json.dumps(packed_steps.reference()))
    return found


def test_steps_have_the_same_bytes(local: LocalEnginePage, reference: dict[str, Any]) -> None:
    assert local.page.evaluate(PACK, reference) == [step["bytes"] for step in reference["steps"]]


def test_a_temperature_below_the_threshold_is_greedy(
    local: LocalEnginePage, reference: dict[str, Any]
) -> None:
    """The plan says the threshold; a plan of an older export has none."""
    greedy = next(step for step in reference["steps"] if step["samples"])
    assert greedy["samples"][0]["temperature"] == 0
    low = {**greedy, "samples": [{**greedy["samples"][0], "temperature": GREEDY_BELOW / 2}]}
    zero = {**low, "samples": greedy["samples"][:1]}
    plan = reference["plan"]
    layout = {name: value for name, value in plan["step"].items() if name != "greedy_below"}
    [same, other] = local.page.evaluate(PACK, {"plan": plan, "steps": [low, zero]})
    assert same == other
    older = {**plan, "step": layout}
    [same, other] = local.page.evaluate(PACK, {"plan": older, "steps": [low, zero]})
    assert same != other


def test_results_are_read_as_the_same_numbers(
    local: LocalEnginePage, reference: dict[str, Any]
) -> None:
    got = local.page.evaluate(PARSE, reference)
    assert any(result["captured"] for result in reference["results"])
    for mine, result in zip(got, reference["results"], strict=True):
        for sample, parsed in zip(mine["samples"], result["parsed"], strict=True):
            assert parsed | {"mass": list(parsed["mass"])} == {
                name: sample[name] for name in parsed
            }
        if result["captured"]:
            check_rows(mine["rows"], result["captured"])


def check_rows(rows: list[dict[str, Any]], captured: dict[str, Any]) -> None:
    """Statistics are told with six digits."""
    embedding = [row["embedding"] for row in rows]
    np.testing.assert_allclose(embedding, captured["embedding"], rtol=1e-5)
    for name in ("residual", "attention", "mlp", "attention_cosine", "mlp_cosine", "entropy"):
        found = [[layer[name] for layer in row["layers"]] for row in rows]
        np.testing.assert_allclose(found, captured[name], rtol=1e-5)
