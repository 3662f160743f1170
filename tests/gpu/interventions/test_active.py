"""Interventions in both runners against hooks on transformers, and what they may not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu.checks.rig import greedy
from gpu.config import ModelConfig
from gpu.errors import InvalidRequest
from gpu.interventions.active import ActiveInterventions, InterventionSchedule
from gpu.load_options import LoadOptions
from gpu.pytorch.runner import TorchRunner
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import FROM_GPU, Floats, InspectionRequest, Row, Sampled, Step
from gpu.webgpu.device import Device
from tests.golden import Trained
from tests.gpu.engine import driving
from tests.gpu.engine.driving import GREEDY, counted
from tests.gpu.models import random_llama
from tests.gpu.ops.rig import compare
from tests.gpu.runners.test_memory import allocated, everything

pytestmark = pytest.mark.parity

NAMES = ("gqa8", "derived_head", "head100_all_bias", "head80_theta")
N_TOKENS = 40

Load = Callable[[Path], Runner]


@pytest.fixture(params=["wgpu", "torch"])
def load(request: pytest.FixtureRequest, device: Device) -> Iterator[Load]:
    """Loads a folder into one kind of runner."""
    opened: list[TorchRunner] = []

    def load_(folder: Path) -> Runner:
        if request.param == "wgpu":
            return driving.load(device, folder)
        opened.append(TorchRunner.load(folder, LoadOptions(dtype="f32", slots=4)))
        return opened[-1]

    yield load_
    for runner in opened:
        runner.close()


@pytest.fixture(scope="module")
def runner(device: Device) -> WgpuRunner:
    return driving.load(device, random_llama.folder("derived_head"), "f16")


def some_interventions(config: ModelConfig, seed: int = 0) -> ActiveInterventions:
    """Return interventions of every kind: heads scaled down, up and to 0, the last layer's MLP off,
    the first layer and the last one steered."""
    rng = np.random.default_rng(seed)
    last = config.n_layers - 1
    vectors = (rng.normal(size=config.hidden_size) for _ in range(2))
    heads = {(layer, int(rng.integers(config.n_heads))): 0.0 for layer in range(config.n_layers)}
    heads |= {(0, config.n_heads - 1): 1.75, (last, 0): -0.5}
    steer = {
        layer: (0.5 * v).astype(np.float32) for layer, v in zip((0, last), vectors, strict=True)
    }
    return ActiveInterventions(heads, {0: 0.3}, {last: 0.0, 0: 1.5}, steer)


def some_schedule(config: ModelConfig) -> InterventionSchedule:
    """Return a schedule: one setting, another, one token patched in two layers of which one is
    steered too, and the first setting again."""
    rng = np.random.default_rng(9)
    first, second = some_interventions(config), some_interventions(config, 1)
    last = config.n_layers - 1
    vectors = {i: rng.normal(size=config.hidden_size).astype(np.float32) for i in (last - 1, last)}
    schedule = InterventionSchedule()
    for at, active in ((0, first), (7, second), (12, replace(second, patch=vectors)), (13, first)):
        schedule.change(at, active)
    return schedule


def always(active: ActiveInterventions) -> InterventionSchedule:
    schedule = InterventionSchedule()
    schedule.change(0, active)
    return schedule


class Hooked:
    """transformers' model with the interventions of one sequence."""

    def __init__(
        self, oracle: random_llama.Reference, schedule: InterventionSchedule, head_dim: int
    ) -> None:
        self._oracle = oracle
        self._schedule = schedule
        self._head_dim = head_dim

    def logits(self, ids: list[int]) -> Floats:
        with self._hooks():
            return self._oracle.logits(ids)

    @torch.no_grad()
    def attention(self, ids: list[int]) -> Floats:
        """(from, n_layers, n_heads, to)"""
        with self._hooks():
            out = self._oracle.model(torch.tensor([ids]), output_attentions=True)
        layers = torch.stack([layer[0] for layer in out.attentions], 1)  # heads, layers, from, to
        weights: Floats = layers.permute(2, 1, 0, 3).numpy()
        return weights

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        handles = []
        try:
            for i, layer in enumerate(self._oracle.model.model.layers):
                handles += self._hook(i, layer)
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, i: int, layer: Any) -> list[Any]:
        at, size = self._schedule.at, self._head_dim

        def heads(_: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            x = inputs[0].clone()
            for position in range(x.shape[1]):
                for (layer_, head), factor in at(position).heads.items():
                    if layer_ == i:
                        x[:, position, head * size : (head + 1) * size] *= factor
            return (x,)

        def scaled(part: str) -> Callable[..., torch.Tensor]:
            def scale(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
                n = output.shape[1]
                factors = [getattr(at(position), part).get(i, 1.0) for position in range(n)]
                return output * torch.tensor(factors)[:, None]

            return scale

        def before(_: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            x = args[0].clone()
            for position in range(x.shape[1]):
                active = at(position)
                if i in active.patch:
                    x[:, position] = torch.from_numpy(active.patch[i])
                if i in active.steer:
                    x[:, position] += torch.from_numpy(active.steer[i])
            return (x, *args[1:])

        attention = layer.self_attn.o_proj
        return [
            layer.register_forward_pre_hook(before),
            attention.register_forward_pre_hook(heads),
            attention.register_forward_hook(scaled("attention")),
            layer.mlp.register_forward_hook(scaled("mlp")),
        ]


def intervened_logits(
    runner: Runner,
    ids: list[int],
    slot: int = 0,
    chunk: int = 8,
    schedule: InterventionSchedule | None = None,
) -> Floats:
    """Return the logits after each token, under a schedule or else what is set for the slot."""
    parts, first = [], 0
    while first < len(ids):
        end = min(first + chunk, len(ids))
        if schedule is not None:
            end = schedule.next_change(first, end)
            runner.set_interventions(slot, schedule.at(first))
        part = ids[first:end]
        rows = tuple(Row(slot, first + i, id) for i, id in enumerate(part))
        samples = tuple(greedy(i, slot) for i in range(len(part)))
        parts.append(runner.logits(Step(rows, samples, interventions=True)))
        first = end
    return np.concatenate(parts)


def check(runner: Runner, oracle: random_llama.Reference, name: str, ids: list[int]) -> None:
    config = runner.config
    schedule = some_schedule(config)
    plain = oracle.logits(ids)
    want = Hooked(oracle, schedule, config.head_dim).logits(ids)
    size = np.abs(want).max()
    assert np.abs(want - plain).max() > 0.1 * size, "the interventions should show"
    driving.begin(runner, 0, ids, len(ids))
    got = intervened_logits(runner, ids, schedule=schedule)
    kind = f"reach.{type(runner).__name__}.logits"
    compare(kind, name, got, want, np.array(1e-5 * size), seed=0)


@pytest.mark.parametrize(
    "name",
    [*NAMES[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[2:])],
)
def test_interventions_equal_hooks_on_transformers(load: Load, name: str) -> None:
    runner = load(random_llama.folder(name))
    check(runner, random_llama.reference(name), name, random_llama.ids(name, N_TOKENS))


@pytest.mark.ci
def test_interventions_in_a_trained_model_equal_hooks(load: Load, trained: Trained) -> None:
    ids = trained.texts[0].ids[:N_TOKENS]
    check(load(trained.folder), random_llama.Reference(trained.folder), trained.name, ids)


@pytest.mark.parametrize("part", ["heads", "attention", "mlp", "steer", "patch", "layer"])
def test_each_kind_of_intervention_equals_hooks(load: Load, part: str) -> None:
    name, layer = "gqa8", 1
    runner, ids = load(random_llama.folder(name)), random_llama.ids(name, 12)
    oracle, config = random_llama.reference(name), runner.config
    vector = np.random.default_rng(3).normal(size=config.hidden_size).astype(np.float32)
    active = {
        "heads": ActiveInterventions(heads={(layer, 5): -2.0}),
        "attention": ActiveInterventions(attention={layer: 0.0}),
        "mlp": ActiveInterventions(mlp={layer: 3.0}),
        "steer": ActiveInterventions(steer={layer: vector}),
        "patch": ActiveInterventions(patch={layer: vector, 0: -vector}),
        "layer": ActiveInterventions(attention={layer: 0.0}, mlp={layer: 0.0}),
    }[part]
    want = Hooked(oracle, always(active), config.head_dim).logits(ids)
    assert np.abs(want - oracle.logits(ids)).max() > 0.01 * np.abs(want).max()
    driving.begin(runner, 2, ids, 12)
    runner.set_interventions(2, active)
    got = intervened_logits(runner, ids, slot=2)
    assert np.abs(got - want).max() <= 2e-4 * np.abs(want).max()


@pytest.mark.ci
def test_statistics_and_states_include_interventions(load: Load) -> None:
    """The last layer's MLP is off; its steering counts as part of the MLP's update."""
    name = "derived_head"
    runner, ids = load(random_llama.folder(name)), random_llama.ids(name, 12)
    last, vector = runner.config.n_layers - 1, np.full(runner.config.hidden_size, 2, np.float32)
    rows = tuple(Row(0, i, id) for i, id in enumerate(ids))
    states, statistics = {}, {}
    for active in (None, ActiveInterventions(mlp={last: 0.0}, steer={last: vector})):
        driving.begin(runner, 0, ids, 12)
        runner.set_interventions(0, active)
        runner.submit(Step(rows, capture=True, interventions=active is not None))
        statistics[active is not None] = runner.collect().captured
        found = runner.inspect(
            Step(rows, interventions=active is not None), InspectionRequest(states=True)
        ).states
        assert found is not None
        states[active is not None] = found
    with_, without = statistics[True], statistics[False]
    assert with_ is not None
    assert without is not None
    assert not with_.mlp[:, last].any()
    np.testing.assert_allclose(
        states[True][:, last], states[False][:, last] + vector, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(states[True][:, :last], states[False][:, :last])
    np.testing.assert_array_equal(with_.attention[:, :last], without.attention[:, :last])
    for layer in range(runner.config.n_layers):
        norms = np.linalg.norm(states[True][:, layer + 1], axis=-1)
        np.testing.assert_allclose(with_.residual[:, layer], norms, rtol=1e-5)


# ---- whose rows, and when -----------------------------------------------------------------------


def test_each_row_gets_what_is_set_for_its_slot(load: Load) -> None:
    name = "gqa8"
    runner = load(random_llama.folder(name))
    texts = {slot: random_llama.ids(name, 6, seed=slot) for slot in range(4)}
    actives = {slot: some_interventions(runner.config, slot) for slot in (0, 3)}
    alone = {}
    for slot, ids in texts.items():
        driving.begin(runner, slot, ids, 8, [slot])
        runner.set_interventions(slot, actives.get(slot))
        alone[slot] = intervened_logits(runner, ids, slot)
    order = [3, 0, 1, 2]
    for i in range(6):
        rows = tuple(Row(slot, i, texts[slot][i]) for slot in order)
        samples = tuple(greedy(place, slot) for place, slot in enumerate(order))
        together = runner.logits(Step(rows, samples, interventions=True))
        expected = np.stack([alone[slot][i] for slot in order])
        exact = 0 if isinstance(runner, WgpuRunner) else 1e-5
        assert np.abs(together - expected).max() <= exact * np.abs(expected).max()


@pytest.mark.ci
def test_interventions_act_only_in_steps_that_ask_for_them(load: Load) -> None:
    name = "derived_head"
    runner, ids = load(random_llama.folder(name)), random_llama.ids(name, 12)
    plain = driving.all_logits(runner, ids)
    runner.set_interventions(0, some_interventions(runner.config))
    step = Step((Row(0, 11, ids[-1]),), (greedy(0),))
    assert np.abs(runner.logits(step)[0] - plain[-1]).max() <= 1e-5
    driving.begin(runner, 0, ids, 12)  # begins without
    again = intervened_logits(runner, ids)
    assert np.abs(again - plain).max() <= 1e-5


def write_three(
    runner: WgpuRunner, actives: list[ActiveInterventions], *, ahead: bool
) -> list[Sampled]:
    """Return a token with each of `actives`; steps are submitted as far `ahead` as possible, or one
    by one."""
    prompt, found = random_llama.ids("derived_head", 20), []
    driving.begin(runner, 0, prompt, 24)
    driving.prefill(runner, prompt[:-1])
    for i, active in enumerate(actives):
        runner.set_interventions(0, active)
        row = Row(0, 19 + i, FROM_GPU if i else prompt[-1])
        runner.submit(Step((row,), (counted(GREEDY, 0, 0, i),), interventions=True))
        if not ahead or i + 1 >= runner.in_flight:
            found += runner.collect().samples
    while len(found) < len(actives):
        found += runner.collect().samples
    return found


def test_a_change_acts_on_the_steps_submitted_after_it(runner: WgpuRunner) -> None:
    actives = [ActiveInterventions(mlp={0: factor}) for factor in (1.0, 0.0, -1.0)]
    deinterleave = write_three(runner, actives, ahead=False)
    assert write_three(runner, actives, ahead=True) == deinterleave
    unchanged = write_three(runner, [ActiveInterventions()] * 3, ahead=False)
    assert unchanged[0] == deinterleave[0]
    assert unchanged[1:] != deinterleave[1:]


# ---- exactness ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("derived_head", "f16"), pytest.param("head100_all_bias", "q8", marks=pytest.mark.slow)],
)
def test_without_interventions_every_bit_is_that_of_a_plain_plan(
    device: Device, name: str, dtype: str
) -> None:
    """Before anything was set and after everything was reset: logits, states, keys and values."""
    runner = driving.load(device, random_llama.folder(name), dtype)
    ids = random_llama.ids(name, 24)
    rows = tuple(Row(0, i, id) for i, id in enumerate(ids))

    def everything_of(interventions: bool) -> list[Floats]:
        driving.begin(runner, 0, ids, 24)
        found = [runner.logits(Step(rows, (greedy(23),), interventions=interventions))]
        states = runner.inspect(
            Step(rows, interventions=interventions), InspectionRequest(keys=(0, 24), states=True)
        )
        found += [states.states, states.attention]  # type: ignore[list-item]
        pools = [*runner.pools.keys, *runner.pools.values]
        return [*found, *(runner._memory.read(pool)[:2] for pool in pools)]

    plain = everything_of(interventions=False)
    for active in (None, some_interventions(runner.config)):
        runner.set_interventions(0, active)
        intervened_logits(runner, ids)
        runner.set_interventions(0, None)
        for got, want in zip(everything_of(interventions=True), plain, strict=True):
            assert got.tobytes() == want.tobytes()


def test_capturing_a_run_with_interventions_changes_nothing(runner: WgpuRunner) -> None:
    prompt, active = random_llama.ids("derived_head", 9), some_interventions(runner.config)
    texts = []
    for capture in (False, True):
        driving.begin(runner, 1, prompt, 30)
        runner.set_interventions(1, active)
        found: list[Sampled] = []
        rows = tuple(Row(1, i, id) for i, id in enumerate(prompt))
        for i in range(20):
            sample = counted(GREEDY, len(rows) - 1, 1, i)
            runner.submit(Step(rows, (sample,), capture, interventions=True))
            found += runner.collect().samples
            rows = (Row(1, len(prompt) + i, FROM_GPU),)
        texts.append(found)
    assert texts[0] == texts[1]


def test_inspecting_a_step_with_interventions_sees_their_effect(runner: WgpuRunner) -> None:
    ids, active = random_llama.ids("derived_head", 12), some_interventions(runner.config)
    driving.begin(runner, 0, ids, 12)
    runner.set_interventions(0, active)
    logits = intervened_logits(runner, ids)
    step = Step((Row(0, 11, ids[-1]),), (greedy(0),), interventions=True)
    lens = runner.inspect(step, InspectionRequest(lens=True)).lens
    assert lens is not None
    assert np.array_equal(lens[-1].view("u4"), logits[-1].view("u4"))


def test_a_token_patched_by_its_own_state_is_as_it_was(runner: WgpuRunner) -> None:
    ids = random_llama.ids("derived_head", 12)
    driving.begin(runner, 0, ids, 12)
    driving.prefill(runner, ids[:-1])
    rows, samples = (Row(0, 11, ids[-1]),), (greedy(0),)
    plain = runner.logits(Step(rows, samples))
    states = runner.inspect(Step(rows), InspectionRequest(states=True)).states
    assert states is not None
    for layer in range(runner.config.n_layers):
        runner.set_interventions(0, ActiveInterventions(patch={layer: states[0, layer]}))
        patched = runner.logits(Step(rows, samples, interventions=True))
        assert patched.tobytes() == plain.tobytes()
        runner.set_interventions(0, ActiveInterventions(patch={layer: states[0, layer] + 1}))
        assert runner.logits(Step(rows, samples, interventions=True)).tobytes() != plain.tobytes()


# ---- what it costs ------------------------------------------------------------------------------


@pytest.mark.ci
def test_memory_is_taken_when_something_is_set_and_counted(device: Device) -> None:
    runner = driving.load(device, random_llama.folder("tiny"))
    ids = random_llama.ids("tiny", 9)
    driving.generate(runner, ids, 4)
    work, held = runner.memory.work, allocated()
    runner.set_interventions(0, None)
    assert runner.memory.work == work
    runner.set_interventions(0, ActiveInterventions(mlp={0: 0.5}))
    assert runner.memory.work - work == allocated() - held > 0
    intervened_logits(runner, ids)
    before = everything(runner)
    for factor in (0.1, 0.2):
        runner.set_interventions(0, ActiveInterventions(mlp={0: factor}))
        intervened_logits(runner, ids)
    assert everything(runner) == before


def test_changing_a_strength_is_one_small_write(
    runner: WgpuRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, int]] = []
    memory = type(runner._memory)
    write = memory.write

    def noted(self: Any, tensor: Any, array: Any, at: int = 0) -> None:
        written.append((tensor.name, array.nbytes))
        write(self, tensor, array, at)

    runner.set_interventions(3, ActiveInterventions(heads={(2, 1): 0.5}, mlp={1: 0.0}))
    monkeypatch.setattr(memory, "write", noted)
    for active, expected in (
        (ActiveInterventions(heads={(2, 1): 0.75}, mlp={1: 0.0}), [("interventions.heads", 4 * 8)]),
        (ActiveInterventions(heads={(2, 1): 0.75}, mlp={1: 0.0}), []),
        (ActiveInterventions(heads={(2, 1): 0.75}), [("interventions.updates", 4 * 2)]),
        (
            ActiveInterventions(heads={(2, 1): 0.75}, patch={1: np.ones(64, np.float32)}),
            [("interventions.vectors", 4 * 64), ("interventions.keeps", 4)],
        ),
        (
            ActiveInterventions(heads={(2, 1): 0.75}),
            [("interventions.vectors", 4 * 64), ("interventions.keeps", 4)],
        ),
        (None, [("interventions.heads", 4 * 8)]),
    ):
        runner.set_interventions(3, active)
        assert written == expected
        written.clear()


@pytest.mark.parametrize(
    ("active", "message"),
    [
        (ActiveInterventions(attention={5: 1.0}), "no layer 5: the model has 5, from 0 to 4"),
        (ActiveInterventions(mlp={-1: 1.0}), "no layer -1"),
        (ActiveInterventions(heads={(0, 8): 1.0}), "no head 8: the model has 8"),
        (ActiveInterventions(heads={(0, 1): float("nan")}), r"the factor at \(0, 1\) is nan"),
        (ActiveInterventions(mlp={0: 1e39}), "the factor at 0 is 1e[+]39"),
        (
            ActiveInterventions(steer={0: np.zeros(3, np.float32)}),
            r"has shape \(3,\); give 64 finite",
        ),
        (ActiveInterventions(steer={1: np.full(64, np.inf, np.float32)}), "give 64 finite"),
        (ActiveInterventions(patch={9: np.zeros(64, np.float32)}), "no layer 9"),
        (
            ActiveInterventions(patch={0: np.zeros(63, np.float32)}),
            r"that patches layer 0 has shape \(63,\)",
        ),
    ],
)
def test_interventions_on_missing_layers_or_heads_are_refused(
    load: Load, active: ActiveInterventions, message: str
) -> None:
    runner = load(random_llama.folder("derived_head"))
    with pytest.raises(InvalidRequest, match=message) as caught:
        runner.set_interventions(0, active)
    assert caught.value.param == "reach"


# ---- a schedule
# ------------------------------------------------------------------------------------


def test_a_schedule_gives_the_interventions_of_each_position() -> None:
    off, on, plain = (
        ActiveInterventions(mlp={0: 0.0}),
        ActiveInterventions(heads={(0, 1): 2.0}),
        ActiveInterventions(mlp={0: 1.0}),
    )
    schedule = InterventionSchedule()
    assert not schedule.at(5).acts
    assert schedule.next_change(0, 9) == 9
    for first, active in (
        (4, off),
        (8, on),
        (10, ActiveInterventions(mlp={0: 0.0}, attention={1: 1.0})),
    ):
        schedule.change(first, active)
    assert [schedule.at(p).digest for p in (3, 4, 7)] == [b"", off.digest, off.digest]
    assert [schedule.next_change(p, 12) for p in (0, 3, 4, 8, 10, 11)] == [4, 4, 8, 10, 12, 12]
    assert schedule.next_change(8, 9) == 9
    assert schedule.digest_at(11) == off.digest
    assert schedule.digests(9) == ((4, off.digest), (8, on.digest))
    schedule.change(9, on)  # as before it: nothing begins here, and what came later is gone
    assert schedule.next_change(8, 99) == 99
    schedule.change(4, plain)
    assert schedule.digests(99) == ()


def test_digests_are_equal_exactly_for_equal_interventions() -> None:
    vector, zeros = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    different = [
        ActiveInterventions(),
        ActiveInterventions(heads={(0, 1): 0.5}),
        ActiveInterventions(heads={(1, 0): 0.5}),
        ActiveInterventions(attention={1: 0.5}),
        ActiveInterventions(mlp={1: 0.5}),
        ActiveInterventions(mlp={1: 0.25}),
        ActiveInterventions(steer={1: vector}),
        ActiveInterventions(steer={2: vector}),
        ActiveInterventions(patch={1: vector}),
        ActiveInterventions(patch={1: zeros}),
        ActiveInterventions(steer={1: vector}, patch={1: vector}),
    ]
    assert len({active.digest for active in different}) == len(different)
    assert ActiveInterventions(heads={(0, 1): 1.0}, mlp={2: 1.0}, steer={0: zeros}).digest == b""
    a = ActiveInterventions(heads={(0, 1): 0.5, (2, 3): 2.0}, steer={0: vector, 1: -vector})
    b = ActiveInterventions(heads={(2, 3): 2.0, (0, 1): 0.5}, steer={1: -vector, 0: vector.copy()})
    assert a.digest == b.digest
