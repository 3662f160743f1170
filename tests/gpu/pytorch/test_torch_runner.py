"""The torch runner against transformers (logits, statistics, golden text), and a runner's rules."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.errors import ModelError
from gpu.load_options import LoadOptions
from gpu.pytorch.runner import TorchRunner
from gpu.reference.divergence import mean_kl
from gpu.reference.sampler import sample_token
from gpu.step import FROM_GPU, Floats, Row, Sample, Sampled, Step
from tests.golden import Trained
from tests.gpu.models import random_llama
from tests.gpu.models.logit_checks import OF_A_DEEP_MODEL, OF_THE_LARGEST_LOGIT, check_logits
from tests.gpu.ops.rig import compare

GQA = "gqa8"
MOST = {
    "embedding": 5e-7,
    "residual": 1e-5,
    **dict.fromkeys(("attention", "mlp"), 2e-5),
    **dict.fromkeys(("attention_cosine", "mlp_cosine"), 4e-5),
    "entropy": 6e-5,
}
"""Error of a layer's statistics, relative to the largest."""


def sample(row: int, slot: int = 0, **changes: Any) -> Sample:
    fields = {"seed": 0, "index": 0, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return Sample(row=row, slot=slot, **{**fields, "repetition_penalty": 1.0, **changes})


def rows(ids: list[int], slot: int = 0, first: int = 0) -> tuple[Row, ...]:
    return tuple(Row(slot, first + i, id) for i, id in enumerate(ids))


def all_logits(runner: TorchRunner, ids: list[int], slot: int = 0) -> Floats:
    """Return the logits after every id, in one step."""
    return runner.logits(Step(rows(ids, slot), tuple(sample(i, slot) for i in range(len(ids)))))


def scattered_blocks(runner: TorchRunner, n_tokens: int, seed: int = 1) -> list[int]:
    """Return blocks in random order, so that an ignored page table shows."""
    order = np.random.default_rng(seed).permutation(runner.limits.n_blocks)
    return [int(block) for block in order[: -(-n_tokens // runner.limits.block_tokens)]]


@pytest.fixture
def load() -> Iterator[Any]:
    opened: list[TorchRunner] = []

    def open_runner(
        folder: Path, *, progress: Any = lambda fraction, message: None, **options: Any
    ) -> TorchRunner:
        wanted = LoadOptions(**{"dtype": "f32", **options})
        opened.append(TorchRunner.load(folder, wanted, progress=progress))
        return opened[-1]

    yield open_runner
    for runner in opened:
        runner.close()


# ---- against transformers --------------------------------------------------------------------


@pytest.mark.parametrize("name", random_llama.NAMES)
def test_logits_equal_transformers(name: str, load: Any) -> None:
    runner = load(random_llama.folder(name))
    ids = random_llama.ids(name, 75)
    runner.set_blocks(0, scattered_blocks(runner, len(ids)))
    got, expected = all_logits(runner, ids), random_llama.reference(name).logits(ids)
    assert got.dtype == np.float32
    of_largest = OF_A_DEEP_MODEL if name == "deep_shards" else OF_THE_LARGEST_LOGIT
    check_logits("torch.logits", got, expected, name, of_largest)
    assert np.array_equal(got.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("name", random_llama.NAMES)
def test_statistics_equal_hooks_on_transformers(name: str, load: Any) -> None:
    runner = load(random_llama.folder(name))
    ids = random_llama.ids(name, 50, seed=1)
    runner.set_blocks(0, scattered_blocks(runner, len(ids)))
    runner.submit(Step(rows(ids), (sample(49),), capture=True))
    got, expected = runner.collect().captured, random_llama.reference(name).captured(ids)
    for field in MOST:
        values, theirs = getattr(got, field), getattr(expected, field)
        assert values.shape == theirs.shape
        bound = MOST[field] * np.abs(theirs).max()
        compare(f"torch.{field}", name, values, theirs, bound, seed=0)
    assert got.layer_ms.shape == (runner.config.n_layers, 2)
    assert (got.layer_ms > 0).all()
    assert got.embed_ms > 0
    assert got.head_ms > 0


@pytest.mark.slow
def test_greedy_text_of_a_trained_model(load: Any, trained: Trained) -> None:
    runner = load(trained.folder)
    for text in trained.texts:
        written = write(runner, 0, text.prompt_ids, len(text.greedy_ids))
        assert [s.id for s in written] == text.greedy_ids


def test_float16_barely_changes_a_trained_model(load: Any, trained: Trained) -> None:
    """Keys, values and weights; the bundled model is saved as float16."""
    ids = trained.texts[0].ids[:128]
    runners = [load(trained.folder, dtype=dtype) for dtype in ("f32", "f16")]
    whole, rounded = (runner.model.embedding for runner in runners)
    assert rounded.equal(whole.half().float())
    assert rounded.equal(whole) == (trained.name == "tale")
    for runner in runners:
        runner.set_blocks(0, scattered_blocks(runner, len(ids)))
    full, half = (all_logits(runner, ids) for runner in runners)
    assert 0 < mean_kl(full, half) <= 1e-5


# ---- the runner's rules ----------------------------------------------------------------------


def write(
    runner: TorchRunner, slot: int, prompt: list[int], n: int, **changes: Any
) -> list[Sampled]:
    """Run the prompt in one step, then `n` - 1 tokens, each submitted before the last is read."""
    runner.begin_slot(slot, np.array(prompt, np.uint32))
    runner.set_blocks(slot, scattered_blocks(runner, len(prompt) + n, seed=slot))
    last = sample(len(prompt) - 1, slot, **changes)
    runner.submit(Step(rows(prompt, slot), (last,)))
    written = []
    for i in range(1, n):
        token = Row(slot, len(prompt) + i - 1, FROM_GPU)
        runner.submit(Step((token,), (sample(0, slot, index=i, **changes),)))
        written.append(runner.collect().samples[0])
    return [*written, runner.collect().samples[0]]


@pytest.mark.parametrize("cuts", [(1,) * 40, (16, 16, 8), (7, 1, 31, 1), (39, 1)])
def test_chunked_prefill_equals_whole(cuts: tuple[int, ...], load: Any) -> None:
    runner = load(random_llama.folder(GQA))
    ids = random_llama.ids(GQA, sum(cuts))
    runner.set_blocks(0, scattered_blocks(runner, len(ids)))
    whole = all_logits(runner, ids)
    runner.set_blocks(0, scattered_blocks(runner, len(ids), seed=2))
    at, parts = 0, []
    for n in cuts:
        samples = tuple(sample(i) for i in range(n))
        parts.append(runner.logits(Step(rows(ids[at : at + n], first=at), samples)))
        at += n
    assert np.abs(np.concatenate(parts) - whole).max() <= 1e-5 * np.abs(whole).max()


def test_sequences_in_one_step_do_not_see_each_other(load: Any) -> None:
    runner = load(random_llama.folder(GQA))
    first, second = random_llama.ids(GQA, 20, seed=1), random_llama.ids(GQA, 33, seed=2)
    runner.set_blocks(0, [9, 2])
    runner.set_blocks(3, [4, 1, 7])
    alone = [all_logits(runner, first, 0), all_logits(runner, second, 3)]
    mixed = rows(second[:5], 3) + rows(first, 0) + rows(second[5:], 3, first=5)
    samples = tuple(sample(i, row.slot) for i, row in enumerate(mixed))
    together = runner.logits(Step(mixed, samples))
    of_slot = np.array([row.slot for row in mixed])
    for slot, expected in zip((0, 3), alone, strict=True):
        error = np.abs(together[of_slot == slot] - expected).max()
        assert error <= 1e-5 * np.abs(expected).max()


def test_the_draw_is_the_reference_samplers(load: Any) -> None:
    """Each token equals the reference sampler's on recomputed logits, with the whole text in the
    penalty, and the next step takes it without the host."""
    name, n = "odd100_tied", 24
    runner = load(random_llama.folder(name))
    prompt = random_llama.ids(name, 10)
    changes = {"seed": 2**63 + 5, "temperature": 1.2, "top_k": 50, "top_p": 0.95, "min_p": 0.01}
    written = write(runner, 2, prompt, n, repetition_penalty=1.3, **changes)
    context = prompt + [s.id for s in written]
    logits = all_logits(runner, context, slot=2)
    assert len({s.id for s in written}) > n // 2
    for i, sampled in enumerate(written):
        at = len(prompt) + i
        again = sample_token(
            logits[at - 1],
            context[:at],
            sample(0, index=i, repetition_penalty=1.3, **changes),
        )
        assert (sampled.id, sampled.rank, sampled.draw) == (again.id, again.rank, again.draw)
        # Logits of rows that are computed together differ in their last bits, so `top_p` may keep a
        # token more or less: compared are the probabilities before the filters.
        assert abs(sampled.n_kept - again.n_kept) <= 1
        kept, kept_again = sampled.mass[0], again.mass[0]
        share, share_again = sampled.probability * kept, again.probability * kept_again
        assert share == pytest.approx(share_again, rel=1e-4)
        assert sampled.logprob == pytest.approx(again.logprob, abs=1e-4)


def test_a_reused_slot_forgets_its_penalties(load: Any) -> None:
    """The penalty forgets the slot's previous sequence."""
    runner = load(random_llama.folder(GQA))
    prompt = random_llama.ids(GQA, 8)
    fresh = write(runner, 1, prompt, 8, repetition_penalty=5.0)
    write(runner, 1, random_llama.ids(GQA, 60, seed=9), 20)
    assert write(runner, 1, prompt, 8, repetition_penalty=5.0) == fresh


def test_a_submitted_step_ignores_later_changes(load: Any) -> None:
    """A slot may begin a new sequence while its last step is in flight, as on a GPU's queue."""
    runner = load(random_llama.folder(GQA))
    prompt, other = random_llama.ids(GQA, 100), random_llama.ids(GQA, 100, seed=3)
    step = Step(rows(prompt), (sample(99, repetition_penalty=3.0),))
    runner.begin_slot(0, np.array(prompt, np.uint32))
    runner.set_blocks(0, list(range(7)))
    runner.submit(step)
    expected = runner.collect().samples
    runner.begin_slot(0, np.array(prompt, np.uint32))
    runner.submit(step)
    runner.begin_slot(0, np.array(other, np.uint32))
    runner.set_blocks(0, list(range(7, 14)))
    assert runner.collect().samples == expected


def test_a_step_without_samples_fills_the_cache(load: Any) -> None:
    runner = load(random_llama.folder(GQA))
    ids = random_llama.ids(GQA, 30)
    runner.set_blocks(0, [5, 3])
    expected = all_logits(runner, ids)[-1]
    runner.set_blocks(0, [8, 6])
    runner.submit(Step(rows(ids[:-1])))
    result = runner.collect()
    assert result.samples == ()
    assert result.captured is None
    assert result.gpu_ms is None
    assert result.wait_ms > 0
    got = runner.logits(Step(rows(ids[-1:], first=29), (sample(0),)))[0]
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


# ---- loading ---------------------------------------------------------------------------------


def test_limits_memory_and_progress(load: Any) -> None:
    folder, seen = random_llama.folder(GQA), []
    runner = load(
        folder, context=100, slots=3, progress=lambda done, message: seen.append((done, message))
    )
    assert (runner.limits.context, runner.limits.slots) == (100, 3)
    assert runner.limits.n_blocks == 3 * 7
    assert runner.memory.weights == 4 * Checkpoint.open(folder).parameters()
    assert runner.memory.kv_cache == runner.limits.n_blocks * runner.limits.block_bytes
    half = load(folder, dtype="f16", context=100, slots=3)
    assert half.memory.kv_cache == runner.memory.kv_cache // 2
    assert seen == sorted(seen, key=lambda entry: entry[0])
    assert seen[-1][0] == 1.0
    assert "loading weights" in seen[-1][1]


def test_unsupported_models_are_refused(tmp_path: Path) -> None:
    folder = random_llama.folder(GQA)
    with pytest.raises(
        ModelError, match="dtype 'q5' is not supported; supported: f32, f16, q8, q4"
    ):
        TorchRunner.load(folder, LoadOptions(dtype="q5"))
    with pytest.raises(ModelError, match="context of 100000"):
        TorchRunner.load(folder, LoadOptions(dtype="f32", context=100_000))
    config = json.loads((folder / "config.json").read_text())
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copyfile(folder / name, tmp_path / name)
    for change, message in (
        ({"intermediate_size": 91}, r"gate_proj\.weight has shape \(90, 104\), .* \(91, 104\)"),
        ({"num_hidden_layers": 3}, "tensor 'model.layers.2.input_layernorm.weight' is missing"),
        ({"attention_bias": True}, "tensor .*q_proj.bias' is missing"),
        ({"vocab_size": 334}, r"embed_tokens\.weight has shape \(333, 104\)"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=message):
            TorchRunner.load(tmp_path, LoadOptions(dtype="f32"))
