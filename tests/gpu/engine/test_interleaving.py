"""Interleaving changes nothing: 64 requests beside each other on a device write what each writes
alone, in f32, with every feature of the scheduler at work."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.engine.engine import Engine
from gpu.engine.scheduler import Scheduler
from gpu.engine.step_builder import Scheduled
from gpu.events import Token
from gpu.kv.blocks import blocks_for
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.speculative.draft_length import DraftLength
from gpu.speculative.ngram import NgramDrafter
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.engine.traffic import (
    Together,
    Written,
    draw_traffic,
    stats_after_runs,
    write_alone,
)
from tests.gpu.models import random_llama, random_models

N_REQUESTS = 64
WINDOW = 40


@dataclass(frozen=True)
class Model:
    """A model on the device, and the folder that it came from."""

    runner: WgpuRunner
    folder: Path

    def coarse(self) -> WgpuRunner:
        """Return a draft model on the same device: the model itself in fewer bits."""
        config, checkpoint = self.runner.config, Checkpoint.open(self.folder)
        options = LoadOptions(dtype="q8", slots=16, context=CONTEXT)
        return kept_open(WgpuRunner(self.runner.gpu, config, checkpoint, options))

    @contextmanager
    def engine(
        self, options: LoadOptions, draft: WgpuRunner | None = None, **limits: Any
    ) -> Iterator[Engine]:
        """Yield an engine on the runner, within these limits."""
        whole = self.runner.limits
        self.runner.limits = replace(whole, **limits)
        engine = Engine(
            lambda: self.runner,
            Tokenizer.load(self.folder),
            options,
            make_draft=(lambda target: draft) if draft else None,
        )
        try:
            yield engine
        finally:
            engine.close()
            self.runner.limits = whole


def windowed(folder: Path) -> Path:
    """Make a model of which every layer has a sliding window that is longer than a block."""
    shutil.copytree(random_llama.folder("long_context"), folder)
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config |= {"model_type": "mistral", "sliding_window": WINDOW}
    path.write_text(json.dumps(config), "utf-8")
    return folder


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda folder: random_llama.folder("derived_head"),
    "windows": windowed,
    "windows-alternating": lambda folder: random_models.folder("gemma2"),
    "layernorm": lambda folder: random_models.folder("gpt2"),
    "experts": lambda folder: random_models.folder("mixtral"),
}
CONTEXT = 100
PROMPT, TOKENS = 52, 48


@pytest.fixture(
    scope="module",
    params=[
        "llama",
        *(pytest.param(name, marks=pytest.mark.slow) for name in list(FOLDERS)[1:]),
    ],
)
def model(
    request: pytest.FixtureRequest, device: Device, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    folder = FOLDERS[request.param](tmp_path_factory.mktemp(request.param) / "model")
    options = LoadOptions(dtype="f32", slots=16, context=CONTEXT)
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    return Model(kept_open(WgpuRunner(device, config, checkpoint, options)), folder)


def kept_open(runner: WgpuRunner) -> WgpuRunner:
    """Return a runner that no engine closes."""
    runner.close = lambda: None  # type: ignore[method-assign]
    return runner


def guess(monkeypatch: pytest.MonkeyPatch, texts: Sequence[list[int]]) -> None:
    """Make the drafts those of the known texts, but for every fifth token."""

    def propose(self: NgramDrafter, ids: list[int], most: int) -> list[int]:
        text = next((text for text in texts if text[: len(ids)] == ids), [])
        rest = enumerate(text[len(ids) : len(ids) + most], len(ids))
        return [id if at % 5 else 3 + id % 7 for at, id in rest]

    monkeypatch.setattr(NgramDrafter, "propose", propose)
    monkeypatch.setattr(DraftLength, "choose", lambda self, most, n_beside: min(most, 7))


def preempt_often(monkeypatch: pytest.MonkeyPatch, draw: random.Random) -> None:
    """Preempt any run before one step in twelve, beside those that lack blocks."""
    next_step = Scheduler.next_step

    def preempting(self: Scheduler, *, prefill: bool = True) -> Scheduled | None:
        if self.active and not draw.randrange(12):
            self._preempt(draw.choice(self.active))
        return next_step(self, prefill=prefill)

    monkeypatch.setattr(Scheduler, "next_step", preempting)


def facts(token: Token) -> tuple[Any, ...]:
    """Return what the model and the draw decided about a token."""
    shown = [(c.id, c.before, c.after, c.cut) for c in token.candidates]
    return (token.index, token.id, token.logprob, token.draw, token.rank, token.n_kept, shown)


def check(alone: Sequence[list[Token]], together: Sequence[Written]) -> None:
    """Check every token that was written, and that all were but those of cancelled requests."""
    for i, (wanted, written) in enumerate(zip(alone, together, strict=True)):
        assert written.done is not None
        assert written.done.reason in ("length", "cancelled"), written.done.message
        n = len(written.tokens)
        assert n == len(wanted) or written.done.reason == "cancelled"
        found = [facts(token) for token in written.tokens]
        assert found == [facts(token) for token in wanted[:n]], f"request {i} wrote another text"


def interleaved(
    model: Model, monkeypatch: pytest.MonkeyPatch, seed: int, *, cached: bool, drafts: str
) -> None:
    """Compare, and check that what could disturb a text did happen. `drafts`: "ngram" for those of
    the known texts, "model" for a draft model's, or "none"."""
    arrivals = draw_traffic(
        random.Random(seed),
        N_REQUESTS,
        vocab_size=model.runner.config.vocab_size,
        longest=PROMPT,
        most_tokens=TOKENS,
    )
    plain = LoadOptions(prefix_cache=False)
    with model.engine(plain, windows=(None,)) as engine:
        alone = write_alone(engine, arrivals)
    texts = [
        [*arrival.request.ids, *(token.id for token in tokens)]
        for arrival, tokens in zip(arrivals, alone, strict=True)
    ]
    guess(monkeypatch, texts)
    preempt_often(monkeypatch, random.Random(seed))
    draft = model.coarse() if drafts == "model" else None
    options = LoadOptions(
        prefix_cache=cached, spec_type="none" if draft else drafts, queue=N_REQUESTS
    )
    with model.engine(options, draft, n_blocks=blocks_for(CONTEXT) + 4) as engine:
        together = Together(engine, arrivals).run()
        stats, kv = stats_after_runs(engine), engine._thread._scheduler.kv_state()
        check(alone, together)
    assert stats.used_blocks == stats.n_running == stats.n_waiting == 0
    assert set(kv.owners) == {0}
    assert stats.n_preemptions > 5
    dones = [written.done for written in together if written.done]
    assert sum(done.reason == "cancelled" for done in dones) > 3
    if cached:
        assert stats.reused_tokens > 0
        assert kv.copies > 0
        assert kv.evictions > 0
    n_accepted = sum(done.timings.draft_n_accepted for done in dones)
    n_drafts = sum(done.timings.draft_n for done in dones)
    assert n_drafts > n_accepted > 100 if drafts != "none" else not n_drafts


@pytest.mark.ci
def test_64_requests_write_what_each_writes_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    interleaved(model, monkeypatch, 0, cached=True, drafts="ngram")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("drafts", ["ngram", "model", "none"])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_64_requests_of_any_kind_write_what_each_writes_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch, cached: bool, drafts: str, seed: int
) -> None:
    interleaved(model, monkeypatch, seed, cached=cached, drafts=drafts)
