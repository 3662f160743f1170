"""Damaged and hostile exports: every one is refused with a reason, and none keeps the page busy."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error

from e2e.local.exports import SMALL, exported
from e2e.local.local_engine import LocalEnginePage, request, tokens_of
from tests.gpu.lora import random_loras

pytestmark = pytest.mark.quick

N_CHANGES = 1000
MOST_MS = 1500
"""For the checks of one file on a busy machine. They take 2, or 100 for the largest cache that a
file may ask for."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    loras = {"tone": random_loras.of_model(SMALL.folder, "attention")}
    return exported(SMALL, tmp_path_factory.mktemp("sound"), "q8", loras=loras)


def damaged_piece(folder: Path) -> None:
    path = folder / "weights" / "0000.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def missing_plan(folder: Path) -> None:
    (folder / "plans" / "software.plan").unlink()


def foreign_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"name": "something else"}')


def later_version(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["version"] = 2
    (folder / "manifest.json").write_text(json.dumps(manifest))


def file_outside(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["model"]["plans"]["software"]["file"] = "../static/js/main.js"
    (folder / "manifest.json").write_text(json.dumps(manifest))


FORGET = """async () => {
  for (const name of await caches.keys()) await caches.delete(name);
}"""
"""Removes the files that the page keeps: it would not fetch them again."""


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (damaged_piece, "0000.bin is not the file that the manifest describes"),
        (missing_plan, "could not be fetched: HTTP 404"),
        (foreign_manifest, "is not the manifest of a model"),
        (later_version, "exported in format 2, and this page reads 1; export it again"),
        (file_outside, "outside of its folder"),
    ],
)
def test_a_bad_export_is_refused_with_a_reason(
    local: LocalEnginePage, sound: Path, tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    local.page.evaluate(FORGET)
    folder = tmp_path / "bad"
    shutil.copytree(sound, folder)
    spoil(folder)
    with pytest.raises(Error, match=message):
        local.load(folder)


HOLD_KERNELS = """() => {
  const compile = GPUDevice.prototype.createComputePipelineAsync;
  const held = [];
  let release;
  const released = new Promise((resolve) => (release = resolve));
  GPUDevice.prototype.createComputePipelineAsync = function () {
    held.push(released);
    return released;
  };
  window.releaseKernels = async () => {
    GPUDevice.prototype.createComputePipelineAsync = compile;
    release();
    await new Promise((resolve) => setTimeout(resolve)); // after all that waited for it
    return held.length;
  };
}"""
"""Lets no kernel be compiled until the page calls `releaseKernels`, which returns how many were."""


def test_nothing_is_told_of_an_export_after_its_refusal(
    local: LocalEnginePage, sound: Path, tmp_path: Path
) -> None:
    """Kernels that went on compiling would say that the model is loading, for ever."""
    folder = tmp_path / "bad"
    shutil.copytree(sound, folder)
    damaged_piece(folder)
    local.page.evaluate(FORGET)
    local.page.evaluate(HOLD_KERNELS)
    with pytest.raises(Error, match=r"0000\.bin"):
        local.load(folder)
    told = local.page.evaluate("progress.length")
    assert local.page.evaluate("releaseKernels()") > 0
    assert local.page.evaluate("progress.length") == told


def with_plan(sound: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return an export whose plan was changed, with the manifest that belongs to it."""
    shutil.copytree(sound, folder)
    path = folder / "plans" / "software.plan"
    plan = json.loads(gzip.decompress(path.read_bytes()))
    change(plan)
    data = gzip.compress(json.dumps(plan).encode())
    path.write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    found = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["model"]["plans"]["software"] |= found
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def narrow_step(plan: dict[str, Any]) -> None:
    """Bind less of the step's buffer than its shaders declare."""
    view = plan["tensors"]["step"]["view"]
    plan["views"].append([*plan["views"][view][:2], 16, *plan["views"][view][3:]])
    for dispatch in plan["dispatches"]:
        dispatch[3] = [len(plan["views"]) - 1 if each == view else each for each in dispatch[3]]


def broken_source(plan: dict[str, Any]) -> None:
    plan["sources"] = ["fn main() {" for _ in plan["sources"]]


def test_what_webgpu_refuses_while_loading_is_told(
    local: LocalEnginePage, sound: Path, tmp_path: Path
) -> None:
    with pytest.raises(Error, match=r"[Ss]hader|[Pp]ipeline"):
        local.load(with_plan(sound, tmp_path / "bad", broken_source))


@pytest.mark.slow
def test_what_webgpu_refuses_later_ends_the_run_and_all_after_it(
    local: LocalEnginePage, sound: Path, tmp_path: Path
) -> None:
    """The numbers would be wrong, so no token is shown."""
    local.load(with_plan(sound, tmp_path / "bad", narrow_step))
    for _ in range(2):
        [events] = local.run(request([1, 2, 3], max_tokens=8))
        assert tokens_of(events) == []
        assert events[-1]["reason"] == "error"
        assert "the GPU refused a part of the model" in events[-1]["message"]


CHECK = """async ([path, value]) => {
  const { checkPlan } = await import("/static/js/local/gpu/check-plan.js");
  const keys = typeof path === "string" ? path.split(".") : path;
  const last = keys.pop();
  const plan = structuredClone(soundPlan);
  keys.reduce((place, key) => place[key], plan)[last] = value;
  try {
    checkPlan(plan);
    return "accepted";
  } catch (error) {
    return error.message;
  }
}"""


@pytest.fixture(scope="module")
def plan_page(local: LocalEnginePage, sound: Path) -> LocalEnginePage:
    """The page with the plan and the manifest of a sound export in `soundPlan`, `soundManifest`."""
    plan = json.loads(gzip.decompress((sound / "plans" / "software.plan").read_bytes()))
    manifest = json.loads((sound / "manifest.json").read_bytes())
    local.page.evaluate(
        "(files) => { [window.soundPlan, window.soundManifest] = files; }", [plan, manifest]
    )
    return local


LORA = {"name": "tone", "rank": 8, "parameters": 640, "modules": 4}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("profile", "software", "accepted"),
        ("format", "other", "not a plan of Tokenglass"),
        ("version", 9, "version is 9, expected 1"),
        ("views", None, "views should be a list of 0 to 1048576 values and is null"),
        ("views.0", [0, 2**40, 16, "x", "f32", [4]], "view 0 is outside of its buffer"),
        ("buffers.1.bytes", -4, "buffers[1].bytes should be a whole number"),
        ("buffers.1.bytes", 1e18, "buffers[1].bytes should be a whole number"),
        ("buffers.2.interleaved", 0, "buffers[2].interleaved should be a whole number from 1"),
        ("kernels.0.source", 10**6, "kernel 0 has no source"),
        ("dispatches.0", ["embed", 0, [1, 1, 1], [10**6] * 4, None], "dispatch 0 does not fit"),
        ("dispatches.0.4", 10**6, "dispatch 0 has no cost"),
        ("costs.0.0", [[1, "constructor", []]], 'should be one of "one", "rows"'),
        ("plans.0.dispatches", [[0, 10**6]], "plan 0 has dispatches that do not exist"),
        ("plans.1.result_bytes", 0, "plan 1 has no room for its results"),
        ("limits.slots", 0, "limits.slots should be a whole number from 1 to 1024 and is 0"),
        ("lookup.split_tokens", 0, "lookup.split_tokens should be a whole number from 1"),
        ("lookup.rows", [1], "no plan has as many rows as a step"),
        ("results.words", 20, "a result is smaller than its candidates"),
        ("step.bytes", 16, "the step's buffer is smaller than a step"),
        ("tensors.seen", None, "tensors.seen should be an object and is null"),
        ("model.loras", [{"name": 5}], "model.loras[0].name should be a string and is 5"),
        ("model.loras", [LORA] * 65, "model.loras should be a list of 0 to 64 values"),
        ("model.loras", [LORA, LORA], "two adapters have one name"),
        ("model.loras", [{**LORA, "name": str(i)} for i in range(9)], "no room for 9 adapters"),
        (["tensors", "lora.strengths", "view"], 10**6, "tensor lora.strengths has no view"),
        ("plans.0.loras", "yes", "plans[0].loras should be true or false"),
    ],
)
def test_a_hostile_plan_is_refused(
    plan_page: LocalEnginePage, path: str | list[str], value: Any, message: str
) -> None:
    assert message in plan_page.page.evaluate(CHECK, [path, value])


FUZZ = """async ({ kind, seed, n }) => {
  const { checkPlan } = await import("/static/js/local/gpu/check-plan.js");
  const { checkManifest } = await import("/static/js/local/gpu/check-manifest.js");
  const { PlanLookup } = await import("/static/js/local/gpu/plan-lookup.js");
  const { Slots } = await import("/static/js/local/gpu/slots.js");
  const { StepBuffer } = await import("/static/js/local/gpu/step-buffer.js");
  const { InterventionTables } = await import("/static/js/local/gpu/intervention-tables.js");
  const { ActiveInterventions } = await import("/static/js/local/interventions/active.js");
  const { sampleOf } = await import("/static/js/local/gpu/results.js");

  const random = () => ((seed = (seed * 1103515245 + 12345) % 2 ** 31) / 2 ** 31);
  const pick = (values) => values[Math.floor(random() * values.length)];
  const VALUES = [
    null, undefined, true, -1, 0, 1, 2, 0.5, 3e9, 2 ** 53, 1e300, NaN, "", "f16", "__proto__",
    [], {}, [[]], [null], { length: 1e9 }, [0, 0], [0, 1e9], Array(100).fill(0),
  ];
  const isTree = (value) => typeof value === "object" && value !== null;

  // A place of the file: a key at each depth, so that structs are met as often as long lists.
  const place = (root) => {
    let holder = root;
    for (;;) {
      const key = pick(Object.keys(holder));
      const inner = holder[key];
      if (!isTree(inner) || !Object.keys(inner).length || random() < 0.15) return [holder, key];
      holder = inner;
    }
  };
  const change = (root) => {
    const [holder, key] = place(root);
    const before = holder[key];
    if (random() < 0.2 && !Array.isArray(holder)) {
      delete holder[key];
      return () => { holder[key] = before; };
    }
    const scaled = typeof before === "number" && random() < 0.5;
    const near = () => before * pick([-1, 0.5, 2, 1024, 2 ** 20]) + pick([0, 0, 1, -1]);
    holder[key] = scaled ? near() : pick(VALUES);
    return () => { holder[key] = before; };
  };

  // What the engine makes of a plan that passed, without a GPU.
  const use = (plan) => {
    new Slots(plan);
    const { lookup, limits } = plan;
    const size = { rows: lookup.rows[0], samples: lookup.samples[0], context: limits.context };
    try {
      new PlanLookup(plan).find({ ...size, kind: "plain" });
    } catch (error) {
      if (!/has no plan/.test(error.message)) throw error;
    }
    const params = { seed: 1n, first_index: 0, logit_bias: [], temperature: 1 };
    const row = { slot: 0, position: 0, token: 1 };
    const samples = Array(Math.min(limits.max_samples, 2));
    new StepBuffer(plan).pack([row], samples.fill({ row: 0, slot: 0, index: 0, params }), [[0]]);
    const loras = (plan.model.loras ?? []).map(({ name }) => ({ name, strength: 1 }));
    const write = (name, row, at) => {
      const [, , bytes] = plan.views[plan.tensors[name].view];
      if (at + row.byteLength > bytes) throw new Error(`${name} is written beyond its end`);
    };
    new InterventionTables({ write }, plan).set(1, new ActiveInterventions({ loras }));
    sampleOf(new ArrayBuffer(plan.results.words * 4), 0, plan.results);
  };
  const [sound, check] = {
    plan: [soundPlan, (file) => use(checkPlan(file))],
    manifest: [soundManifest, (file) => checkManifest(file, "manifest.json")],
  }[kind];
  const REASONS = /cannot be used|not a plan|not the manifest|exported in format/;
  const file = structuredClone(sound);
  const step = { kind: "plain", rows: 1, samples: 1, context: 1 };
  if (kind === "plan") new PlanLookup(sound).find(step);  // the sound file has what is looked for
  const found = { refused: 0, accepted: 0, slowest: 0, wrong: [] };
  for (let i = 0; i < n; i++) {
    const undo = [change(file)];
    while (random() < 0.3) undo.unshift(change(file));
    const begun = performance.now();
    try {
      check(file);
      found.accepted++;
    } catch (error) {
      if (REASONS.test(error.message)) found.refused++;
      else found.wrong.push(`${error.name}: ${error.message}`);
    }
    found.slowest = Math.max(found.slowest, performance.now() - begun);
    for (const each of undo) each();
  }
  check(file);  // all changes were undone
  return found;
}"""


@pytest.mark.parametrize("kind", ["plan", "manifest"])
def test_any_change_of_a_file_is_refused_with_a_reason_or_harmless(
    plan_page: LocalEnginePage, kind: str
) -> None:
    found = plan_page.page.evaluate(FUZZ, {"kind": kind, "seed": 1, "n": N_CHANGES})
    assert found["wrong"] == []
    assert found["refused"] > N_CHANGES / 4
    assert found["accepted"] > 0
    assert found["slowest"] < MOST_MS
