"""Figures that the sentences of the guided tour should have, computed from the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Page

from e2e.bundled import ask_engine
from e2e.net.message_log import MessageLog
from e2e.site import Site
from gpu.inspection.requests import (
    Answer,
    AttentionFrom,
    DevicePeaks,
    LogitLens,
    Question,
    StepPlan,
    Waterfall,
)
from gpu.sampling_params import LIVE, SamplingParams

OPENS = (
    "Tokens",
    "Weights",
    None,
    "Attention",
    "Attention",
    None,
    "Lens",
    "Filters",
    "Filters",
    "Cache",
    "Timeline",
    None,
    None,
)
"""The instrument of each step."""
FORMAT = """async ([name, value]) => {
  const { amount } = await import("/static/js/look/plan/detail.js");
  return { amount, ...(await import("/static/js/ui/format.js")) }[name](value);
}"""


@dataclass
class Run:
    """Messages of a run of one prompt, and the engine that wrote it."""

    site: Site
    messages: MessageLog
    page: Page
    prompt: str
    index: int

    def _format(self, name: str, value: Any) -> str:
        return str(self.page.evaluate(FORMAT, [name, value])).replace("\u00a0", " ")

    def count(self, n: int) -> str:
        return f"{n:,}"

    def figure(self, value: float) -> str:
        return self._format("figure", value)

    def share(self, value: float) -> str:
        return f"{self._format('percent', float(value))} %"

    def label(self, id: int) -> str:
        return self._format("tokenLabel", self.site.engine.tokenizer.piece(id)) or "·"

    @cached_property
    def hello(self) -> dict[str, Any]:
        return self.messages.last("hello")

    @cached_property
    def accepted(self) -> dict[str, Any]:
        return self.messages.events("accepted")[-1]

    @cached_property
    def tokens(self) -> list[dict[str, Any]]:
        return self.messages.events("token")

    @property
    def token(self) -> dict[str, Any]:
        return self.tokens[self.index]

    @cached_property
    def ids(self) -> list[int]:
        return [t["id"] for t in (*self.accepted["prompt"], *self.tokens)]

    @property
    def row(self) -> int:
        """Position of the token before: its row chose the token."""
        return len(self.accepted["prompt"]) + self.index - 1

    def ask(self, question: Question) -> Answer:
        return ask_engine(self.site, question)

    def attention(self, position: int) -> npt.NDArray[np.float32]:
        return self.ask(AttentionFrom(self.ids[: position + 1], position))["weights"]

    @property
    def shape(self) -> tuple[int, int]:
        model = self.hello["model"]
        return model["n_layers"], model["n_heads"]

    # ---- the figures of each step, in the order of its sentences --------------------------------

    def step_1(self) -> list[str]:
        own = len(self.site.engine.tokenizer.encode(self.prompt))
        return [
            self.count(len(self.prompt)),
            f"{own} tokens",
            self.count(len(self.accepted["prompt"])),
            self.count(self.token["id"]),
            self.count(self.hello["model"]["vocab_size"]),
        ]

    def step_2(self) -> list[str]:
        model = self.hello["model"]
        norm = self.token["stats"]["embedding"]
        return [
            self.count(model["vocab_size"]),
            self.count(model["hidden_size"]),
            self.figure(norm),
        ]

    def step_3(self) -> list[str]:
        stats = self.token["stats"]
        start, end = stats["embedding"], stats["layers"][-1]["residual"]
        ends = [self.figure(value) for value in (start, end, end / start)]
        return [f"{self.shape[0]} layers", *ends]

    def step_4(self) -> list[str]:
        weights = self.attention(self.row)
        looked = weights[:, :, 1 : self.row - 1]
        layer, head, at = np.unravel_index(np.argmax(looked), looked.shape)
        back = self.row - (int(at) + 1)
        return [
            self.count(self.shape[0] * self.shape[1]),
            self.count(self.row + 1),
            str(head),
            str(layer),
            self.share(looked.max()),
            f"{back} token{'s' if back > 1 else ''}",
        ]

    def step_5(self) -> list[str]:
        """Return the figures of the head with the strongest habit over the last 8 tokens."""
        n = 8
        rows = range(self.row - n + 1, self.row + 1)
        spent = {name: np.stack([look(self, at) for at in rows]) for name, look in PLACES.items()}
        even = {
            "previous": np.mean([1 / (at + 1) for at in rows]),
            "copy": _mean([len(copies(self.ids, at)) / (at + 1) for at in rows]),
        }
        named: list[tuple[float, str, int]] = []
        for place, shares in spent.items():
            mean = _mean(shares)
            bar = max(0.25, 3 * even[place])
            named += [(mean[i], place, i) for i in range(len(mean)) if mean[i] >= bar]
        assert named, "no head of the bundled model has a habit here; the test needs another seed"
        score, place, i = max(named)
        layer, head = divmod(i, self.shape[1])
        own = spent[place][-1][i]
        said = [str(head), str(layer), f"{n} tokens", self.share(score)]
        return said if np.isnan(own) else [*said, self.share(own)]

    def step_6(self) -> list[str]:
        ratios = [s["mlp"] / s["residual"] for s in self.token["stats"]["layers"]]
        return [str(int(np.argmax(ratios))), f"{max(ratios):.2f}"]

    @cached_property
    def lens(self) -> Answer:
        return self.ask(LogitLens(self.ids[: self.row + 1], self.row, self.token["id"], top=1))

    def step_7(self) -> list[str]:
        ranks, shares = self.lens["rank"], self.lens["probability"]
        assert ranks[-1] == 0, "the likeliest token is followed where there is one worth it"
        stage = len(ranks)
        while stage > 0 and ranks[stage - 1] == 0:
            stage -= 1
        layer = str(stage - 1)
        if stage == len(ranks) - 1:
            return [layer, self.share(shares[-1])]
        return [layer, self.share(shares[stage]), self.share(shares[-1])]

    @cached_property
    def sampling(self) -> SamplingParams:
        params = self.accepted["params"]
        return SamplingParams(**{name: params[name] for name in LIVE}, seed=params["seed"])

    @cached_property
    def waterfall(self) -> Answer:
        ids = self.ids[: self.row + 1]
        return self.ask(Waterfall(ids, self.row, self.sampling, self.index, top=20))

    def _of_token(self, name: str) -> float:
        at = self.waterfall["ids"].tolist().index(self.token["id"])
        return float(self.waterfall[name][at])

    def step_8(self) -> list[str]:
        rival = next(
            share
            for id, share in zip(self.waterfall["ids"], self.waterfall["raw"], strict=True)
            if id != self.token["id"]
        )
        return [
            self.count(self.hello["model"]["vocab_size"]),
            self.share(self._of_token("raw")),
            self.share(rival),
            f"{self.sampling.temperature:.2f}",
            self.share(self._of_token("tempered")),
        ]

    def step_9(self) -> list[str]:
        return [
            f"{self.sampling.top_p:.2f}",
            self.count(self.token["n_kept"]),
            self.count(self.hello["model"]["vocab_size"]),
            f"{self.token['draw']:.3f}",
            f"{self._of_token('low'):.3f}",
            f"{self._of_token('high'):.3f}",
        ]

    def step_10(self) -> list[str]:
        limits = self.hello["limits"]
        each = limits["kv_block_bytes"] / limits["block_tokens"]
        held = self.row + 1
        reused = self.messages.events("prefill")[-1]["reused"]
        found = [f"{len(self.accepted['prompt'])} tokens", self.count(reused)] if reused else []
        kept = [self._format("bytes", each), f"{held} tokens", self._format("bytes", held * each)]
        return [*kept, self.count(self.row), *found]

    def step_11(self) -> list[str]:
        plan = self.ask(StepPlan(1, self.row)).info
        peaks = self.ask(DevicePeaks()).info
        own = plan["flops"] / plan["n_bytes"]
        ms = 1000 * max(
            plan["n_bytes"] / peaks["bytes_per_s"], plan["flops"] / peaks["flops_per_s"]
        )
        gpu = self.token["times"]["gpu"]
        return [
            self.count(len(plan["dispatches"])),
            self._format("duration", gpu),
            self._format("bytes", plan["n_bytes"]),
            self._format("amount", plan["flops"]),
            self.figure(own),
            self.figure(peaks["flops_per_s"] / peaks["bytes_per_s"]),
            self.share(ms / gpu),
        ]

    def step_12(self) -> list[str]:
        return ["2 tokens"]

    def step_13(self) -> list[str]:
        return [f"{len(self.tokens)} tokens", str(self.accepted["params"]["seed"])]


def copies(ids: list[int], at: int) -> list[int]:
    """Return the places after each earlier copy of token `at`, except the token just before it."""
    return [j + 1 for j in range(at - 2) if ids[j] == ids[at]]


def _previous(run: Run, at: int) -> npt.NDArray[np.float64]:
    return run.attention(at)[:, :, at - 1].ravel().astype(float)


def _copy(run: Run, at: int) -> npt.NDArray[np.float64]:
    where = copies(run.ids, at)
    weights = run.attention(at).astype(float)
    n = weights.shape[0] * weights.shape[1]
    return weights[:, :, where].sum(axis=2).ravel() if where else np.full(n, np.nan)


PLACES: dict[str, Callable[[Run, int], npt.NDArray[np.float64]]] = {
    "previous": _previous,
    "copy": _copy,
}


def _mean(values: Any) -> Any:
    """Over the tokens that have the place; 0 where none has it."""
    array = np.asarray(values, float)
    known = ~np.isnan(array) & (array != 0 if array.ndim == 1 else True)
    total = np.where(known, array, 0).sum(axis=0)
    return total / np.maximum(1, known.sum(axis=0))
