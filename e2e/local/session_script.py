"""Script of a page's messages, and a server with the bundled tokenizer to play it on."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from app import tale
from app.engine_client import LocalEngine
from e2e.site import Site
from gpu.engine.validation import RequestValidator
from gpu.text.tokenizer import Tokenizer
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions
from tests.app.fake_run import FakeRun
from tests.app.page import PageClient, wait_until

OPTIONS = FakeOptions(
    n_slots=2, delay=0.015, context=256, n_layers=2, n_heads=2, loras=("tone", "rhyme")
)


N_STOPPED, N_HELD = 40, 20
"""The script stops the runs of at least `N_STOPPED` tokens. They write `N_HELD` and wait for it,
however late it comes on a busy machine."""
PATIENCE_S = 60.0


class BundledFakeEngine(FakeEngine):
    """The fake engine with the tokens of the bundled model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(OPTIONS)
        self.tokenizer = tokenizer  # type: ignore[assignment]
        self.stories = [tokenizer.encode(OPTIONS.text, bos=False)]
        sizes = {"vocab_size": tokenizer.vocab_size, "eos_ids": tokenizer.eos_ids}
        model = msgspec.structs.replace(self.info.model, **sizes)
        self.info = msgspec.structs.replace(self.info, model=model)
        self.validator = RequestValidator(model, OPTIONS.context, OPTIONS.loras, tokenizer.encode)

    def _decode(self, run: FakeRun) -> None:
        if run.index < N_HELD or run.params.max_tokens < N_STOPPED:
            super()._decode(run)


def load(tokenizer: Tokenizer, progress: Any) -> FakeEngine:
    return BundledFakeEngine(tokenizer)


@contextmanager
def server() -> Iterator[int]:
    """A server with this engine, which is ready; its port."""
    tokenizer = Tokenizer.load(tale.model_dir())
    site = Site(LocalEngine(functools.partial(load, tokenizer), tokenizer), OPTIONS).start()
    try:
        wait_until(lambda: site.engine.hello is not None)
        yield site._server.port
    finally:
        site.close()


Step = tuple[str, dict[str, Any]]
"""("send", a message of the page) or ("until", {type, id} of an event to wait for, no token)."""

USER = {"role": "user", "content": "Tell me of <|im_end|> foxes 🦊"}
TALK = [USER, {"role": "assistant", "content": " There was a fox. "}]
LONG = [{"role": "user", "content": "x y z " * 25}, {"role": "assistant", "content": "q " * 30}]
SEED = str(2**64 - 1)
GREEDY = {"temperature": 0, "seed": "7"}
HEAD_OFF = {"heads": [{"layer": 1, "head": 0, "factor": 0}]}
STEER = {"layer": 0, "toward": "Foxes 🦊", "strength": 2}
PATCH = {"layer": 1, "position": 1, "prompt": "Twice", "token": 0}


def generate(id: str, /, max_tokens: int = 12, **fields: Any) -> Step:
    params = {**GREEDY, "max_tokens": max_tokens, **fields.pop("params", {})}
    return "send", {"type": "generate", "id": id, **fields, "params": params}


def ask(type: str, **fields: Any) -> Step:
    return "send", {"type": type, **fields}


def until(type: str, id: str) -> Step:
    return "until", {"type": type, "id": id}


def loras(**strengths: Any) -> dict[str, Any]:
    return {"loras": [{"name": name, "strength": each} for name, each in strengths.items()]}


SCRIPT: list[Step] = [
    generate("prompt", prompt="Once upon a time", params={"seed": SEED, "top_p": 0.9}),
    until("done", "prompt"),
    generate("chat", messages=[USER], params={"stop": ["lamp"]}),
    until("done", "chat"),
    generate("goes-on", messages=TALK, continue_final=True, capture=False),
    until("done", "goes-on"),
    generate("shorter", messages=[*LONG, *LONG, *LONG, USER], truncation="auto"),
    until("done", "shorter"),
    generate("again", prompt="Once", max_tokens=60),
    until("prefill", "again"),
    ask("update", id="again", params={"temperature": 0.5, "top_k": 5}, capture=False),
    until("updated", "again"),
    ask("update", id="again", reach=HEAD_OFF),
    ask("stop", id="again"),
    until("done", "again"),
    ask("resume", id="chat", after=2),
    ask("resume", id="chat", after=99),
    ask("resume", id="unknown", after=0),
    ask("update", id="chat", params={"temperature": 1}),
    ask("stop", id="chat"),
    ask("stop", id="nobody"),
    generate("changes", prompt="Once", changes=[
        {"index": 2, "params": {"temperature": 1.5}}, {"index": 4, "reach": HEAD_OFF},
    ]),
    until("done", "changes"),
    generate("under", ids=[300, 301, 302], reach={"steer": [STEER], "patch": [PATCH]}),
    until("done", "under"),
    generate("adapted", ids=[300, 301, 302], reach=loras(tone=0.5), max_tokens=60),
    until("prefill", "adapted"),
    ask("update", id="adapted", reach=loras(tone=-1.5, rhyme=0)),
    until("updated", "adapted"),
    ask("stop", id="adapted"),
    until("done", "adapted"),
    generate("spans", ids=[300, 301, 302, 303], written=1, reach=HEAD_OFF, reached=[
        {"first": 0, "reach": {"patch": [PATCH]}}, {"first": 2, "reach": {}},
    ]),
    until("done", "spans"),
    generate("over", ids=[5, 6, 2], written=2),
    until("done", "over"),
    generate("branch", ids=[300, 301, 302, 303], written=2),
    until("done", "branch"),
    generate("branch", prompt="Twice"),
    # Two run, and the others wait.
    generate("first", prompt="Once", max_tokens=150),
    until("prefill", "first"),
    generate("second", prompt="Once", max_tokens=150),
    until("prefill", "second"),
    generate("third", prompt="Once"),
    generate("fourth", prompt="Once"),
    until("accepted", "fourth"),
    ask("update", id="third", params={"min_p": 0.25}, reach={"steer": [{**STEER, "away": ""}]}),
    until("updated", "third"),
    ask("stop", id="fourth"),
    until("done", "fourth"),
    ask("stop", id="first"),
    until("done", "first"),
    until("done", "third"),
    ask("stop", id="second"),
    until("done", "second"),
    ask("count", request=1, prompt="Once upon a time"),
    ask("count", request=2, messages=[USER]),
    ask("count", request=3),
    ask("tokenize", request=4, messages=[{"role": "system", "content": " brief\n"}, *TALK, USER]),
    ask("tokenize", request=5, messages=TALK, continue_final=True),
    ask("tokenize", request=6, prompt="<|im_start|>user\nÄ 🦊"),
    ask("tokenize", request=7, text="<|im_start|>user\nÄ 🦊\x85b"),
    ask("tokenize", request=8, text="a", prompt="b"),
    ask("tokenize", request=9, text="a", continue_final=True),
    ask("segment", request=10, text="Ä 🦊 Once unfolding"),
    ask("segment", request=11, text=101 * "x"),
]  # fmt: skip


def refused(**fields: Any) -> Step:
    return "send", {"type": "generate", "id": "bad", **fields}


def settings(**params: Any) -> Step:
    return refused(prompt="a", params=params)


def under(reach: object, **fields: Any) -> Step:
    return refused(**{"ids": [300, 301, 302], "reach": reach, **fields})


def factors(name: str, *entries: dict[str, Any]) -> dict[str, Any]:
    return {name: [{"layer": 0, "factor": 0.5, **entry} for entry in entries]}


def steers(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"steer": [{**STEER, **entry} for entry in entries]}


def patches(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"patch": [{**PATCH, **entry} for entry in entries]}


def spans(*entries: tuple[int, object], **fields: Any) -> Step:
    reached = [{"first": first, "reach": reach} for first, reach in entries]
    return refused(**{"ids": [300, 301, 302], "reached": reached, **fields})


BAD_INTERVENTIONS: list[Step] = [
    *(under(reach) for reach in (
        5, {"head": []}, {"heads": [{"layer": 0, "head": 0}]},
        factors("heads", {"head": 0, "factor": None}), factors("heads", {"head": "a"}),
        factors("heads", {"head": 2}), factors("heads", {"head": -1}),
        factors("heads", {"head": 0, "layer": 2}), factors("heads", {"head": 1, "factor": 8.5}),
        factors("heads", {"head": 1}, {"head": 0}, {"head": 1, "factor": 2}),
        factors("attention", {"factor": 9}), factors("attention", {"factor": -1e300}),
        factors("attention", {}, {"layer": 1}, {}), factors("mlp", {"layer": 10**9}),
        factors("mlp", {"layer": 0.5}),
        factors("mlp", {"factor": "1"}), factors("mlp", {}, {}),
        loras(**{"it's": 1}), loras(**{"x" * 90: 99}), loras(tone=8.5), loras(rhyme=-9),
        loras(tone="1"), loras(tone=None), {"loras": [{"name": "tone"}]},
        {"loras": [*loras(tone=1)["loras"], *loras(rhyme=1, tone=0)["loras"]]},
        steers({"layer": 7}), steers({"strength": -16.5}), steers({"toward": ""}),
        steers({"toward": "x y z " * 200}), steers({"away": "x y z " * 200}), steers({"away": 1}),
        steers(*[{}] * 9), patches({"layer": 2}), patches({"position": 3}),
        patches({"position": -1}), patches({"prompt": ""}), patches({"token": 99}),
        patches({"token": -1}), patches({}, {}), patches(*[{"token": i} for i in range(17)]),
        {**patches({"position": 9}), **factors("mlp", {"factor": 9})},
    )),
    spans((0, HEAD_OFF), prompt="Once", ids=None),
    spans((2, HEAD_OFF)),
    spans((1, HEAD_OFF), (1, {})),
    spans((-1, HEAD_OFF)),
    spans((0, factors("mlp", {"layer": 9}))),
    spans((0, patches({"position": 5}))),
    spans((0, HEAD_OFF), reach={"patch": [PATCH]}),
    spans((0, patches({"token": 1})), reach={"patch": [PATCH]}),
    refused(prompt="a", changes=[{"index": 1, "reach": factors("mlp", {"layer": 9})}]),
    refused(prompt="a", changes=[{"index": 1, "reach": {"patch": [PATCH]}}]),
    refused(prompt="a", changes=[{"index": 1, "reach": 5}]),
    refused(prompt="a", changes=[{"index": 2, "reach": HEAD_OFF}, {"index": 1, "reach": 5}]),
    ask("update", id="prompt", reach=HEAD_OFF),
    ask("update", id="prompt", reach=5),
    ask("update", id="nobody", reach=HEAD_OFF),
]  # fmt: skip
"""Interventions that are refused."""

BAD: list[Step] = [
    *BAD_INTERVENTIONS,
    *(settings(**{name: value}) for name, value in (
        ("temperature", -1), ("temperature", 10.5), ("top_k", -1), ("top_k", 2**31), ("top_p", 1.5),
        ("min_p", -0.1), ("repetition_penalty", 0), ("frequency_penalty", 3), ("max_tokens", 0),
        ("seed", str(2**64)), ("first_index", -1), ("stop", [""]), ("stop", ["x" * 257]),
        ("stop", ["a"] * 17), ("stop", ["🦊" * 256, ""]), ("temperature", "1"), ("top_k", 1.5),
        ("top_k", None), ("foo", 1), ("stop", ["a", 1]), ("ignore_eos", 1), ("temperature", True),
        ("logit_bias", [{"id": 1}]), ("logit_bias", [{"id": 1, "bias": 1}] * 2),
        ("logit_bias", [{"id": 1, "bias": 101}]), ("logit_bias", [{"id": 10**7, "bias": 1}]),
        ("logit_bias", [{"id": i, "bias": 1} for i in range(301)]), ("seed", "a"),
    )),
    settings(max_tokens=0, seed=str(2**64), top_p=1.5, temperature=-1),
    refused(),
    refused(prompt=5),
    refused(prompt=""),
    refused(prompt="a", ids=[1]),
    refused(ids=[]),
    refused(ids=[1, 10**7]),
    refused(ids=[-1]),
    refused(ids=[1, "a"]),
    refused(ids=[1] * 256),
    refused(ids=[1], written=2),
    refused(prompt="a", written=1),
    refused(messages=[]),
    refused(messages={}),
    refused(messages=[{"role": "x", "content": "a"}]),
    refused(messages=[{"role": "user"}]),
    refused(messages=[USER], continue_final=True),
    refused(prompt="a", continue_final=True),
    refused(prompt="a", truncation="auto"),
    refused(messages=[USER], truncation="sliding"),
    refused(prompt="x y z " * 200),
    refused(prompt="a", changes=[{"index": 1}, {"index": 0}]),
    refused(prompt="a", changes=[{"index": 1, "params": {"seed": 1}}]),
    refused(prompt="a", changes=[{"index": 1, "params": {"top_p": 2.5}}]),
    refused(prompt="a", changes=[{"index": 1, "params": {"top_p": "a"}}]),
    refused(prompt="a", params=None),
    ask("update", id="prompt", params={"temperature": 99}),
    ask("update", id="prompt", params={"seed": 1}),
    ask("update", id="prompt", params={"temperature": "a"}),
    ask("update", id="prompt", capture=1),
    ask("stop", id="../b"),
    ask("stop", id="b", force=True),
    ask("stop"),
    ask("explode", id="b"),
    ask("inspect", request=30, question={"kind": "cache"}, engine=2),
    ask("inspect", request=31, question={"kind": "cache"}, engine=-1),
    ask("inspect", request=32, question={"kind": "cache"}, engine="1"),
    ask("count", request="x"),
    ("send", {"id": "b"}),
    ("send", {"type": 5}),
]  # fmt: skip
"""Messages that are refused, each answered by one error."""


def wire(message: dict[str, Any]) -> str:
    """Return a message as the page sends it to the server, with its seed as a number."""
    params = message.get("params")
    seed = params.get("seed") if isinstance(params, dict) else None
    if isinstance(seed, str) and seed.isdigit():
        message = {**message, "params": {**params, "seed": int(seed)}}
    return json.dumps(message)


def play(port: int) -> list[dict[str, Any]]:
    """Return all messages of the server for the script and the bad messages."""
    page = PageClient(port)
    page.until("status", PATIENCE_S, state="ready")
    for step, message in SCRIPT:
        if step == "send":
            page.send(wire(message))
        else:
            fields = dict(message)
            seen = any(matches(each, message) for each in page.messages)
            if not seen:
                page.until(fields.pop("type"), PATIENCE_S, **fields)
    for n, (_, message) in enumerate(BAD):
        page.send(wire(message))
        page.send(wire({"type": "count", "request": 1000 + n, "prompt": "a"}))
        page.until("counted", PATIENCE_S, request=1000 + n)
    page.close()
    return page.messages


def matches(message: dict[str, Any], wanted: dict[str, Any]) -> bool:
    known = {**message, **message.get("event", {})}
    return wanted.items() <= known.items()
