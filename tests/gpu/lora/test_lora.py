"""Runs with LoRA adapters made by PEFT, against PEFT's own models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpu.analysis.footprint import Footprint
from gpu.checks.rig import greedy
from gpu.engine.engine import Engine
from gpu.errors import InvalidRequest
from gpu.inspection.requests import LogitLens
from gpu.interventions.active import NONE_ACTIVE, ActiveInterventions
from gpu.interventions.messages import Interventions, InterventionSpan, LayerFactor, LoraStrength
from gpu.load_options import LoadOptions
from gpu.models.workspace import LoraWeights
from gpu.pace import LEAST_PACE, PaceChange
from gpu.pytorch.runner import TorchRunner
from gpu.request import Request
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.sampling_params import SamplingParams
from gpu.scheduled_updates import ScheduledUpdate
from gpu.step import Floats, Row, Step
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.engine.test_scheduled_updates import Written
from tests.gpu.lora import random_loras
from tests.gpu.lora.peft_models import WAYS, applied, saved
from tests.gpu.lora.random_loras import LLAMA
from tests.gpu.models import random_models
from tests.gpu.models.logit_checks import check_logits

MODELS = (LLAMA, "gemma2", "gpt2")
OTHERS = ("qwen2", "phi3", "qwen3", "gpt_neox")
KINDS = ("all", "attention", "patterns")
N = 4  # rows of a step with samples
PARAMS = SamplingParams(temperature=0.8, seed=11, max_tokens=8, ignore_eos=True)


def adapters(name: str) -> dict[str, Path]:
    return {kind: saved(name, kind, seed) for seed, kind in enumerate(KINDS)}


def logits(runner: Runner, ids: list[int], strengths: Mapping[str, float]) -> Floats:
    """Return the logits of one pass, float32 (N, vocab_size)."""
    driving.begin(runner, 0, ids, len(ids))
    runner.set_interventions(0, ActiveInterventions(loras=strengths))
    rows = tuple(Row(0, i, id) for i, id in enumerate(ids))
    return runner.logits(Step(rows, tuple(greedy(i) for i in range(len(ids))), loras=True))


@pytest.mark.parity
@pytest.mark.parametrize(
    "name", [*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_logits_are_those_of_peft(device: Device, name: str) -> None:
    loras, ids = adapters(name), random_models.ids(N)
    runner = driving.load(device, random_loras.base(name), loras=loras)
    plain = random_loras.reference(name).logits(ids)
    got, want = [], []
    for strengths in ({"all": 1.0}, {"attention": 0.75, "patterns": -0.5}):
        at = {loras[kind]: strength for kind, strength in strengths.items()}
        want.append(applied(name, at).logits(ids))
        got.append(logits(runner, ids, strengths))
        assert np.abs(want[-1] - plain).max() > 0.05 * np.abs(plain).max(), "it changes too little"
    check_logits("logits with adapters", np.concatenate(got), np.concatenate(want), name)


@pytest.mark.parity
def test_every_way_to_select_modules_is_read(device: Device) -> None:
    loras, ids = {way: saved(LLAMA, way, 9) for way in WAYS}, random_models.ids(N)
    runner = driving.load(device, random_loras.base(LLAMA), n_slots=1, loras=loras)
    plain = random_loras.reference(LLAMA).logits(ids)
    for way, path in loras.items():
        want = applied(LLAMA, {path: 1.0}).logits(ids)
        assert np.abs(want - plain).max() > 0.05 * np.abs(plain).max(), "it changes too little"
        check_logits("logits with adapters", logits(runner, ids, {way: 1.0}), want, way)


@pytest.mark.ci
def test_adapters_keep_their_precision_on_a_packed_base(device: Device) -> None:
    """Against PyTorch with the same packed weights, and keys and values in float16 as well."""
    loras, ids, strengths = adapters("qwen2"), random_models.ids(N), {"all": 1.5, "patterns": -0.5}
    oracle = TorchRunner.load(random_loras.base("qwen2"), LoadOptions(dtype="q4", loras=loras))
    runner = driving.load(device, random_loras.base("qwen2"), "q4", loras=loras)
    got, want = (logits(one, ids, strengths) for one in (runner, oracle))
    oracle.close()
    check_logits("logits with adapters on q4", got, want, of_largest=1.5e-4)


def test_the_torch_backend_computes_the_same() -> None:
    loras, ids = adapters("qwen2"), random_models.ids(N)
    runner = TorchRunner.load(random_loras.base("qwen2"), LoadOptions(dtype="f32", loras=loras))
    want = applied("qwen2", {loras["all"]: 0.5, loras["patterns"]: 1.0}).logits(ids)
    check_logits("logits with adapters", logits(runner, ids, {"all": 0.5, "patterns": 1}), want)
    runner.close()


@pytest.fixture(scope="module")
def runner(device: Device) -> WgpuRunner:
    return driving.load(device, random_loras.base(LLAMA), n_slots=3, loras=adapters(LLAMA))


def test_rows_of_a_pass_have_their_own_adapters(runner: WgpuRunner) -> None:
    """To the bit what each gives alone: two adapters, and the base in its plan without adapters."""
    settings = [
        ActiveInterventions(loras={"all": 1.0}),
        ActiveInterventions(loras={"attention": -1.0, "all": 0.5}),
        NONE_ACTIVE,
    ]
    alone, rows = [], []
    for slot, active in enumerate(settings):
        row = Row(slot, 0, 5 + slot)
        rows.append(row)
        driving.begin(runner, slot, [row.token], 1, [slot])
        runner.set_interventions(slot, active)
        alone.append(runner.logits(Step((row,), (greedy(0, slot),), loras=active.acts))[0])
    samples = tuple(greedy(i, i) for i in range(3))
    together = runner.logits(Step(tuple(rows), samples, loras=True))
    assert np.array_equal(together.view("u4"), np.stack(alone).view("u4"))
    with_interventions = runner.logits(Step(tuple(rows), samples, interventions=True, loras=True))
    assert np.array_equal(with_interventions.view("u4"), together.view("u4"))


def adapted(runner: WgpuRunner) -> Mapping[str, LoraWeights]:
    recorded = runner.plans.plan(1, 0, "plain", loras=True)
    assert recorded.instruments.lora is not None
    return recorded.instruments.lora.by_matrix


def test_plans_without_adapters_are_those_of_the_base(device: Device, runner: WgpuRunner) -> None:
    bare = driving.load(device, random_loras.base(LLAMA), n_slots=3)

    def plan(of: WgpuRunner, loras: bool = False) -> list[tuple[object, ...]]:
        recorded = of.plans.plan(4, 2, "plain", loras=loras).plan
        return [(d.label, d.kernel.name, d.kernel.constants, d.grid) for d in recorded.dispatches]

    assert plan(runner) == plan(bare)
    added = {label for label, *_ in plan(runner, loras=True)} - {label for label, *_ in plan(bare)}
    assert len(added) == 2 * 4 * runner.config.n_layers
    assert all(str(label).endswith((".lora_a", ".lora_b")) for label in added)
    assert bare.memory.work < runner.memory.work
    need = Footprint.of(
        random_loras.base(LLAMA), LoadOptions(dtype="f32", loras=adapters(LLAMA))
    ).adapters
    low = {id(tensor): tensor for of in adapted(runner).values() for tensor in (of.first, of.ends)}
    tables = sum(tensor.n_bytes for tensor in low.values())
    assert runner.memory.weights - bare.memory.weights == need + tables


def test_an_adapter_that_is_not_loaded_is_refused(runner: WgpuRunner) -> None:
    with pytest.raises(InvalidRequest, match="there is no adapter 'other'"):
        runner.set_interventions(0, ActiveInterventions(loras={"other": 1.0}))


# ---- runs ------------------------------------------------------------------------------------


@pytest.fixture
def engine(runner: WgpuRunner, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(runner, "close", lambda: None)
    opened = Engine(lambda: runner, Tokenizer.load(random_loras.base(LLAMA)))
    yield opened
    opened.close()


def with_loras(**strengths: float) -> Interventions:
    return Interventions(loras=tuple(LoraStrength(n, s) for n, s in strengths.items()))


def written(engine: Engine, ids: list[int], interventions: Interventions, **more: Any) -> list[int]:
    request = Request(ids, PARAMS, interventions=interventions, **more)
    return [token.id for token in engine.submit(request)]


def test_the_engine_reports_loaded_adapters(engine: Engine) -> None:
    told = {lora.name: (lora.rank, lora.modules) for lora in engine.info.model.loras}
    assert told == {"all": (3, 35), "attention": (5, 10), "patterns": (7, 35)}


def test_an_adapter_applies_to_the_whole_prompt_and_changes_from_a_token_on(engine: Engine) -> None:
    ids, loras = random_models.ids(16, seed=3), adapters(LLAMA)
    first, later = with_loras(all=1.0), with_loras(all=0.25, attention=1.0)
    got = engine.logits(ids, (InterventionSpan(0, first),))
    want = applied(LLAMA, {loras["all"]: 1.0}).logits(ids)
    check_logits("logits with adapters", got, want)
    spans = (InterventionSpan(0, first), InterventionSpan(9, later))
    assert np.array_equal(engine.logits(ids, spans)[:9], got[:9])
    changed = engine.logits(ids, (InterventionSpan(0, first), InterventionSpan(9, later)))[9:]
    assert not np.allclose(changed, got[9:])


@pytest.mark.ci
def test_a_live_change_is_reported_and_repeated_by_a_scheduled_update(engine: Engine) -> None:
    ids, first, later = random_models.ids(17, seed=4), with_loras(all=1.0), with_loras(attention=2)
    live, again = Written(), Written()
    params = replace(PARAMS, max_tokens=40)
    run = engine.submit(Request(ids, params, interventions=first, pace=LEAST_PACE), live)
    index = run.update(interventions=later, pace=PaceChange(None))
    assert live.wait().updated[0].interventions == later
    assert 0 <= index < 40
    updates = [ScheduledUpdate(index, interventions=later)]
    engine.submit(Request(ids, params, interventions=first, updates=updates), again)
    assert again.wait().ids == live.ids
    assert [(event.index, event.interventions) for event in again.updated] == [(index, later)]
    early = [ScheduledUpdate(1, interventions=later)]  # the live one may come too late to be seen
    assert written(engine, ids, first, updates=early) != written(engine, ids, first)
    assert written(engine, ids, with_loras(all=1.0, attention=0)) == written(engine, ids, first)


@pytest.mark.ci
def test_texts_under_adapters_share_the_cache_only_among_themselves(
    runner: WgpuRunner, engine: Engine
) -> None:
    ids = random_models.ids(17, seed=5)
    settings = [with_loras(all=1.0), Interventions(), with_loras(all=0.5), with_loras(all=1.0)]
    cached = [written(engine, ids, interventions) for interventions in settings]
    anew = Engine(
        lambda: runner, Tokenizer.load(random_loras.base(LLAMA)), LoadOptions(prefix_cache=False)
    )
    assert cached == [written(anew, ids, interventions) for interventions in settings]
    assert cached[0] == cached[3]
    assert len({tuple(text) for text in cached}) == 3
    anew.close()


def test_concurrent_runs_write_the_same_as_alone(engine: Engine) -> None:
    ids = random_models.ids(17, seed=6)
    both = Interventions(mlp=(LayerFactor(1, 0.5),), loras=with_loras(patterns=1.0).loras)
    settings = [with_loras(all=1.0), both]
    runs = [engine.submit(Request(ids, PARAMS, interventions=one)) for one in settings]
    together = [[token.id for token in run] for run in runs]
    assert together == [written(engine, ids, interventions) for interventions in settings]


def test_questions_use_the_adapters_of_the_run(engine: Engine) -> None:
    ids, interventions = random_models.ids(12, seed=7), with_loras(all=1.0, patterns=0.5)
    spans = (InterventionSpan(0, interventions),)
    asked = LogitLens(ids, 11, chosen=ids[0], top=5, spans=spans)
    lens = {array.name: array.numpy() for array in engine.inspect(asked).result().arrays}
    want = engine.logits(ids, spans)[-1]
    assert list(lens["ids"][-1]) == list(np.argsort(-want, kind="stable")[:5])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (with_loras(other=1.0), "no adapter 'other'; loaded: all, attention, patterns"),
        (with_loras(all=9.0), "strength must be a number from -8 to 8, but got 9.0"),
        (with_loras(all=float("nan")), "strength must be a number"),
        (Interventions(loras=(LoraStrength("all", 1.0),) * 2), "two entries for all"),
    ],
)
def test_impossible_settings_are_refused(engine: Engine, wrong: Interventions, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        engine.submit(Request([1, 2], interventions=wrong))
    assert refused.value.param == "reach.loras"
