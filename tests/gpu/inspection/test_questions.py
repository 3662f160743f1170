"""Inspections of both runners equal transformers, and do not change the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu.checks.rig import Array, greedy
from gpu.errors import InvalidRequest
from gpu.load_options import LoadOptions
from gpu.plans import capture_buffers
from gpu.pytorch.runner import TorchRunner
from gpu.runner import Runner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Floats, InspectionRequest, Row, Step
from gpu.webgpu.device import Device
from gpu.webgpu.plan import Dispatch
from tests.golden import Trained
from tests.gpu.engine import driving
from tests.gpu.models import random_llama
from tests.gpu.ops.rig import compare
from tests.gpu.runners.test_memory import allocated, everything

pytestmark = pytest.mark.parity

Load = Callable[[Path], Runner]

NAMES = ("gqa8", "derived_head", "head80_theta", "odd100_tied")
N_TOKENS = 40
SPLIT = "derived_head"
"""Model whose inspections are split into passes: 5 layers of 8 heads."""


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


@dataclass(frozen=True)
class Theirs:
    """Values of a text in transformers: attention (n, n_layers, n_heads, n), states (n, n_layers +
    1, hidden_size), lens (n_layers + 1, vocab_size) of the last token."""

    attention: Floats
    states: Floats
    lens: Floats


@torch.no_grad()
def theirs(oracle: random_llama.Reference, ids: list[int]) -> Theirs:
    model, last = oracle.model, []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0][0]))
    try:
        out = model(torch.tensor([ids]), output_attentions=True, output_hidden_states=True)
    finally:
        hook.remove()
    states = torch.stack([*(state[0] for state in out.hidden_states[:-1]), last[0]], 1)
    attention = torch.stack([layer[0] for layer in out.attentions], 1)  # heads, layers, from, to
    return Theirs(
        attention.permute(2, 1, 0, 3).numpy(),
        states.numpy(),
        model.lm_head(model.model.norm(states[-1])).numpy(),
    )


def rows(ids: list[int], slot: int = 0, first: int = 0) -> tuple[Row, ...]:
    return tuple(Row(slot, first + i, id) for i, id in enumerate(ids))


def check(runner: Runner, oracle: random_llama.Reference, name: str, ids: list[int]) -> None:
    """Half of the text is in the cache; the rows of the other half are inspected."""
    half, n = len(ids) // 2, len(ids)
    want = theirs(oracle, ids)
    driving.begin(runner, 0, ids, n)
    driving.prefill(runner, ids[:half])
    step = Step(rows(ids[half:], first=half), (greedy(n - half - 1),))
    got = runner.inspect(step, InspectionRequest(keys=(0, n), lens=True, states=True))
    assert got.attention is not None
    assert got.lens is not None
    assert got.states is not None
    kind = f"inspect.{type(runner).__name__}"
    compare(f"{kind}.attention", name, got.attention, want.attention[half:], np.array(3e-5), 0)
    largest = np.abs(want.states[half:]).max(axis=(0, 2))[None, :, None]
    compare(f"{kind}.states", name, got.states, want.states[half:], 3e-5 * largest, 0)
    largest = np.abs(want.lens).max(axis=1, keepdims=True)
    compare(f"{kind}.lens", name, got.lens, want.lens, 2e-5 * largest, 0)


@pytest.mark.parametrize("name", NAMES)
def test_attention_states_and_lens_equal_transformers(load: Load, name: str) -> None:
    runner = load(random_llama.folder(name))
    check(runner, random_llama.reference(name), name, random_llama.ids(name, N_TOKENS))


def test_inspecting_a_trained_model_equals_transformers(load: Load, trained: Trained) -> None:
    ids = trained.texts[0].ids[:100]
    check(load(trained.folder), random_llama.Reference(trained.folder), trained.name, ids)


@pytest.mark.ci
def test_a_long_context_in_both_runners(load: Load) -> None:
    """Several splits of the keys, and a range in the middle of them. The bound is wider than above:
    transformers computes angles in float32, off by 1,100 · 2⁻²⁴ at the end."""
    name = "long_context"
    runner = load(random_llama.folder(name))
    ids = random_llama.ids(name, 1100)
    want = theirs(random_llama.reference(name), ids).attention[-1:, :, :, 500:1060]
    driving.begin(runner, 0, ids, len(ids))
    driving.prefill(runner, ids)
    got = runner.inspect(Step((Row(0, 1099, ids[-1]),)), InspectionRequest(keys=(500, 560)))
    assert (got.lens, got.states) == (None, None)
    compare("inspect.attention of 1,100", name, got.attention, want, np.array(1e-4), 0)


def test_sequences_in_one_step_are_inspected_as_if_alone(load: Load) -> None:
    name = "gqa8"
    runner = load(random_llama.folder(name))
    texts = {slot: random_llama.ids(name, 10 + slot, seed=slot) for slot in (0, 2, 3)}
    request = InspectionRequest(keys=(3, 7), states=True)
    alone = {}
    for slot, ids in texts.items():
        driving.begin(runner, slot, ids, 20, [slot])
        alone[slot] = runner.inspect(Step(rows(ids, slot)), request)
    mixed = [row for slot, ids in texts.items() for row in rows(ids, slot)]
    order = np.random.default_rng(0).permutation(len(mixed))
    found = runner.inspect(Step(tuple(mixed[i] for i in order)), request)
    for field in ("attention", "states"):
        expected = np.concatenate([getattr(part, field) for part in alone.values()])[order]
        error = np.abs(getattr(found, field) - expected).max()
        assert error <= (0 if isinstance(runner, WgpuRunner) else 1e-5 * np.abs(expected).max())


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param("derived_head", "f16", marks=pytest.mark.slow),
        ("odd172_bias", "q8"),
        pytest.param("tiny", "f32", marks=pytest.mark.slow),
    ],
)
def test_the_last_lens_is_the_models_own_logits(device: Device, name: str, dtype: str) -> None:
    """Bit for bit, wherever the row lies in its step."""
    runner = driving.load(device, random_llama.folder(name), dtype)
    ids = random_llama.ids(name, 9)
    logits = driving.all_logits(runner, ids)
    for first, place in ((8, 0), (6, 0), (6, 2)):
        step = Step(rows(ids[first:], first=first), (greedy(place),))
        lens = runner.inspect(step, InspectionRequest(lens=True)).lens
        assert lens is not None
        assert lens.shape == (runner.config.n_layers + 1, runner.config.vocab_size)
        assert np.array_equal(lens[-1].view("u4"), logits[first + place].view("u4"))


# ---- looks split into passes -------------------------------------------------------------


def inspect_all(runner: WgpuRunner, ids: list[int], order: Array) -> list[Floats]:
    """Return attention to all keys, lens and states of a text whose rows come in this order."""
    driving.begin(runner, 0, ids, len(ids))
    whole = rows(ids)
    step = Step(tuple(whole[i] for i in order), (greedy(int(np.argmin(order))),))
    found = runner.inspect(step, InspectionRequest((0, len(ids)), lens=True, states=True))
    assert found.attention is not None
    assert found.lens is not None
    assert found.states is not None
    return [found.attention, found.lens, found.states]


@pytest.fixture(scope="module")
def roomy(device: Device) -> WgpuRunner:
    return driving.load(device, random_llama.folder(SPLIT))


@pytest.fixture(scope="module")
def cramped(device: Device) -> WgpuRunner:
    """The same model with room for the states of two rows, and for the attention of eight rows to
    one key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_buffers, "WEIGHTS_BYTES", 4 * 64 * 5)
        policy = replace(device.policy, capture_bytes=4096)
        runner = driving.load(replace(device, policy=policy), random_llama.folder(SPLIT))
        assert runner.plans.weights_room == 8 * runner.config.n_heads
        assert runner.limits.max_captured_rows == 2
    return runner


@pytest.mark.ci
def test_a_large_inspection_is_split_into_passes_of_the_same_bits(
    roomy: WgpuRunner, cramped: WgpuRunner
) -> None:
    """Keys are split into ranges and rows into steps; a row's pass follows those of the rows it
    attends to, in whatever order the rows are asked for."""
    ids = random_llama.ids(SPLIT, 20)
    order = np.random.default_rng(3).permutation(20)
    wants, gots = (inspect_all(runner, ids, order) for runner in (roomy, cramped))
    for got, want in zip(gots, wants, strict=True):
        assert np.array_equal(got.view("u4"), want.view("u4"))


def test_an_inspection_that_no_pass_can_hold_is_refused_with_numbers(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_buffers, "WEIGHTS_BYTES", 1000)
    runner = driving.load(device, random_llama.folder("derived_head"))
    driving.begin(runner, 0, [1], 1)
    with pytest.raises(InvalidRequest, match=r"takes 32 bytes in each of 5 layers.* keeps 0 of"):
        runner.inspect(Step((Row(0, 0, 1),)), InspectionRequest(keys=(0, 1)))


@pytest.mark.parametrize("keys", [(-1, 2), (0, 0), (100, 413)], ids=str)
def test_keys_that_are_no_positions_are_refused(load: Load, keys: tuple[int, int]) -> None:
    runner = load(random_llama.folder("gqa8"))
    driving.begin(runner, 0, [1], 1)
    with pytest.raises(InvalidRequest, match="positions 0 to 511") as caught:
        runner.inspect(Step((Row(0, 0, 1),)), InspectionRequest(keys=keys))
    assert caught.value.param == "keys"
    with pytest.raises(InvalidRequest, match="a lens needs a sample"):
        runner.inspect(Step((Row(0, 0, 1),)), InspectionRequest(lens=True))


# ---- what an inspection may not change -----------------------------------------------------------


def described(dispatch: Dispatch) -> tuple[object, ...]:
    tensors = [(k, t.name, t.n_bytes, t.offset) for k, t in dispatch.tensors.items()]
    kernel = dispatch.kernel
    return dispatch.label, kernel.source, dict(kernel.constants), dispatch.grid, tensors


def test_instruments_add_dispatches_and_change_none(roomy: WgpuRunner) -> None:
    n_layers = roomy.config.n_layers
    for n_rows in (2, 64):
        plain, weights, captured, states, last_hidden = (
            [described(d) for d in roomy.plans.plan(n_rows, 0, kind).plan.dispatches]
            for kind in ("plain", "weights", "captured", "states", "last_hidden")
        )
        labels = [dispatch[0] for dispatch in weights]
        at = [labels.index(f"layer{i:02}.attn.weights") for i in range(n_layers)]
        assert [labels[i - 1] for i in at] == [f"layer{i:02}.attn.qkv" for i in range(n_layers)]
        assert [d for i, d in enumerate(weights) if i not in at] == plain
        assert [d[0] for d in captured] == [*(d[0] for d in plain), "stats"]
        assert [d[0] for d in states] == [d[0] for d in plain]
        assert last_hidden[:-1] == plain
        assert last_hidden[-1][0] == "last_hidden"
    plain, unfused = (
        [d.label for d in roomy.plans.plan(1, 0, kind).plan.dispatches]
        for kind in ("plain", "unfused")
    )
    assert [label for label in unfused if ".unfused" not in label] == plain
    assert len(unfused) == len(plain) + 4 * n_layers


def test_inspecting_leaves_the_text_and_the_cache_as_they_were(device: Device) -> None:
    name = "derived_head"
    runner = driving.load(device, random_llama.folder(name), "f16")
    prompt = random_llama.ids(name, 30)
    want = driving.generate(runner, prompt, 30, capture=True)
    ids = prompt + [sampled.id for sampled in want]
    pools = [*runner.pools.keys, *runner.pools.values]
    before = [runner._memory.read(pool).view("u2") for pool in pools]
    fast = {k: [described(d) for d in p.plan.dispatches] for k, p in runner.plans.recorded.items()}
    runner.inspect(Step(rows(ids), (greedy(7),)), InspectionRequest((0, 5), lens=True, states=True))
    # The last token that was written has no key yet: its inspection leaves one.
    last = len(ids) - 1
    for pool, held in zip(pools, before, strict=True):
        after = runner._memory.read(pool).view("u2")
        after[last // 16, :, last % 16] = held[last // 16, :, last % 16]
        assert np.array_equal(after, held)
    for key, dispatches in fast.items():
        assert [described(d) for d in runner.plans.recorded[key].plan.dispatches] == dispatches
    assert driving.generate(runner, prompt, 30, capture=True) == want


def test_buffers_of_an_inspection_are_allocated_once_and_counted(device: Device) -> None:
    runner = driving.load(device, random_llama.folder("tiny"))
    ids = random_llama.ids("tiny", 4)
    work, held = runner.memory.work, allocated()
    inspect_all(runner, ids, np.arange(4))
    assert runner.memory.work - work == allocated() - held > 0
    before = everything(runner)
    inspect_all(runner, ids, np.arange(4))
    assert everything(runner) == before
