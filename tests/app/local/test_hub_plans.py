"""A server records plans of models that its pages fetch from a hub, and refuses what would hurt."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from flask.testing import FlaskClient

from app import create_app, tale
from app.config import Settings
from app.engine_client import LocalEngine
from app.local import hub_plans
from app.local.plan_messages import PlanRefusal, Plans
from app.local.plan_process import answer
from app.processes.limited_process import ProcessLimits
from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.reader import Checkpoint
from gpu.export.plan_builder import build_plan
from gpu.export.recording import record
from gpu.load_options import LoadOptions
from tests.app.conftest import wait_ready
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import FakeTokenizer

HUB = "https://hub.example"
CDN = "https://cdn.example:8443"


def client(*hub: str) -> Iterator[FlaskClient]:
    engine = LocalEngine(loader(delay=0.0), FakeTokenizer())
    engine.start()
    wait_ready(engine)
    yield create_app(Settings(port=0, hub_url=hub), engine).test_client()
    engine.close()


@pytest.fixture(scope="module")
def http() -> Iterator[FlaskClient]:
    yield from client(HUB, CDN)


def asked(**changes: Any) -> dict[str, Any]:
    """Return the request for the bundled model with `changes` of its config."""
    folder = tale.model_dir()
    checkpoint = Checkpoint.open(folder)
    config = json.loads((folder / "config.json").read_text())
    return {
        "name": "owner/tale",
        "config": config | changes,
        "generation": json.loads((folder / "generation_config.json").read_text()),
        "tensors": {name: checkpoint.shape(name) for name in checkpoint.names()},
        "dtype": "q8",
        "profile": "portable",
    }


def refusal(http: FlaskClient, body: Any) -> str:
    answer = http.post("/api/local/plans", json=body)
    assert answer.status_code == 400
    return str(answer.get_json()["error"]["message"])


def fault(body: dict[str, Any]) -> str:
    """Return why the process refuses a model; it runs in this one here."""
    reply = msgspec.msgpack.decode(answer(msgspec.msgpack.encode(body)), type=PlanRefusal)
    return reply.fault


@pytest.mark.ci
def test_the_plans_are_those_of_an_export(http: FlaskClient) -> None:
    """Recorded from shapes alone in a process with limits; with the bytes that no file has."""
    reply = http.post("/api/local/plans", json=asked())
    assert reply.status_code == 200, reply.text
    found = reply.get_json()
    recorded = found["recorded"]
    config, checkpoint = open_model(tale.model_dir())
    of_files = record(config, checkpoint, LoadOptions(dtype="q8", slots=2), "portable")
    plan, constants = build_plan(of_files, "portable")
    of_files.close()
    assert gzip.decompress(base64.b64decode(recorded["plan"])) == msgspec.json.encode(plan)
    got = {name: base64.b64decode(data) for name, data in recorded["constants"].items()}
    assert got == constants
    assert recorded["parameters"] == checkpoint.parameters(config.tie_embeddings)
    assert found["defaults"]["temperature"] > 0


def test_settings_that_no_file_has_are_those_of_the_models_card() -> None:
    body = {**asked(), "name": "HuggingFaceTB/SmolLM2-135M-Instruct", "generation": {}}
    found = msgspec.msgpack.decode(answer(msgspec.msgpack.encode(body)), type=Plans)
    assert (found.defaults.temperature, found.defaults.top_p) == (0.2, 0.9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "rwkv"}, "is not supported"),
        ({"model_type": None}, "model_type is missing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer from 1 to"),
        ({"num_hidden_layers": 60}, "tensor"),
        ({"hidden_size": 10**12}, "hidden_size must be"),
        ({"vocab_size": -1}, "vocab_size must be"),
        ({"max_position_embeddings": 1e300}, "max_position_embeddings must be"),
        ({"quantization_config": {"quant_method": "gptq"}}, "the weights are quantised"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in fault(asked(**changes))


@pytest.mark.parametrize("shape", [[-1, 256], [2**31, 256], [1] * 9, [256], []], ids=str)
def test_shapes_that_are_none_are_refused(shape: list[int]) -> None:
    body = asked()
    body["tensors"]["model.embed_tokens.weight"] = shape
    assert "model.embed_tokens.weight" in fault(body)


def test_a_profile_that_there_is_not_is_refused() -> None:
    assert "profile must be one of portable, software" in fault({**asked(), "profile": "../x"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "q2"),
        ("tensors", {"a": ["1"]}),
        ("tensors", []),
        ("config", None),
        ("path", "/etc/passwd"),
    ],
)
def test_bad_requests_are_refused(http: FlaskClient, field: str, value: Any) -> None:
    refusal(http, {**asked(), field: value})


def test_large_and_deep_bodies_are_refused(http: FlaskClient) -> None:
    body = {**asked(), "config": {"a": "x" * (1 << 20)}}
    assert http.post("/api/local/plans", json=body).status_code == 413
    deep = json.dumps(asked()).replace(
        '"config": {', '"config": {"a":' + "[" * 5000 + "]" * 5000 + ","
    )
    answer = http.post("/api/local/plans", data=deep, content_type="application/json")
    assert answer.status_code == 400


def test_what_takes_too_long_is_ended(http: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_plans, "MAX_SECONDS", 0.3)
    assert "takes longer than 0.3 s; choose a smaller one" in refusal(http, asked())


@pytest.mark.slow
def test_what_is_too_large_to_send_is_ended(
    http: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_plans, "LIMITS", ProcessLimits(2048 << 20, 1000))
    assert "bytes of output, but the limit is 1,000" in refusal(http, asked())


def test_another_model_waits(http: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_plans, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(hub_plans, "_record", lambda request: busy())

    def busy() -> bytes:
        answers.append(http.post("/api/local/plans", json=asked()).status_code)
        return msgspec.msgpack.encode(PlanRefusal("done"))

    answers: list[int] = []
    refusal(http, asked())
    assert answers == [429]


def test_the_policy_lets_the_hub_through_and_no_other(http: FlaskClient) -> None:
    page = http.get("/", headers={"Host": "127.0.0.1:8000"})
    policy = dict(
        each.split(" ", 1) for each in page.headers["Content-Security-Policy"].split("; ")
    )
    assert policy["connect-src"] == f"'self' ws://127.0.0.1:8000 {HUB} {CDN}"
    assert all(HUB not in sources for name, sources in policy.items() if name != "connect-src")
    assert f'<meta name="tokenglass-hub" content="{HUB}">' in page.text
    worker = http.get("/static/js/local/worker.js", headers={"Host": "127.0.0.1:8000"})
    assert worker.headers["Content-Security-Policy"] == page.headers["Content-Security-Policy"]


def test_without_a_hub_nothing_is_recorded() -> None:
    for http in client():
        assert "start it with --hub-url" in refusal(http, asked())
        assert "tokenglass-hub" not in http.get("/").text
