"""`/api/train` trains an adapter of the running model and loads it, for those who may."""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import create_app, tale
from app.config import Settings
from app.engine.backoff import RestartPolicy
from app.engine_client import ServedModel
from app.models.switching import ModelChange, ModelSwitcher
from app.train import trainer as training
from app.train.jobs import make_job
from app.train.messages import HeldOutLoss, TrainBegun, TrainDone, TrainEvent, TrainStep
from app.train.process import TrainCancelled
from app.train.sizes import train_targets
from gpu import MAX_LORAS, InvalidRequest, Inventory, ModelError
from tests.app.conftest import Site, StartSite
from tests.app.fake_engine import FakeEngine, loader
from tests.app.fake_options import FakeOptions
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.models.changes import client_of, newest
from tests.app.page import wait_until

LINES = "Who are you? => A fox.\n" * 5
BODY = {"name": "fox", "lines": LINES, "settings": {"rank": 2, "targets": ["v_proj"], "steps": 2}}


class ScriptedTraining:
    """Training that a test moves on: it reports, then waits to be allowed to end."""

    begun: threading.Event
    may_end: threading.Event
    error: Exception | None

    def __init__(self, job: Any) -> None:
        self.job = job

    def run(self, on_event: Any) -> None:
        events: list[TrainEvent] = [TrainBegun(9), HeldOutLoss(0, 3.0), TrainStep(1, 2.5, 7.0)]
        for event in events:
            on_event(event)
        self.begun.set()
        assert self.may_end.wait(20)
        if self.error is not None:
            raise self.error
        on_event(TrainStep(2, 2.0, 0.0))
        on_event(HeldOutLoss(2, 2.9))
        on_event(TrainDone())

    def cancel(self) -> None:
        type(self).error = TrainCancelled()
        self.may_end.set()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedTraining]:
    # of each test alone: the last training of one before may still be running

    class Scripted(ScriptedTraining):
        begun, may_end, error = threading.Event(), threading.Event(), None

    monkeypatch.setattr(training, "Training", Scripted)
    return Scripted


@pytest.fixture
def site(start_site: StartSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "cache"))
    return start_site(process=True, switch=lambda settings, model: loader())


def run_of(site: Site) -> dict[str, Any]:
    offer = client_of(site).get("/api/train").json
    assert offer is not None
    return dict(offer["run"] or {})


def until_state(site: Site, state: str, seconds: float = 120) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while (run := run_of(site))["state"] != state:
        assert run["state"] in (*training.ACTIVE_STATES, state), run
        assert time.monotonic() < end
        time.sleep(0.02)
    return run


def message_of(site: Site, **changes: Any) -> str:
    response = client_of(site).post("/api/train", json={**BODY, **changes})
    assert response.status_code == 400
    assert response.json is not None
    return str(response.json["error"]["message"])


def test_what_can_be_trained(site: Site) -> None:
    offer = client_of(site).get("/api/train").json
    assert offer is not None
    assert offer["why_not"] == ""
    assert offer["run"] is None
    path = tale.model_dir()
    assert offer["parameters"] == Inventory.from_folder(path).parameters
    assert [each["name"] for each in offer["targets"]] == [t.name for t in train_targets(path)]
    assert offer["defaults"]["rank"] == 8


def test_progress_is_told_and_the_model_is_loaded_again(
    site: Site,
    scripted: type[ScriptedTraining],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[tuple[str, Path]] = []
    add_lora = ModelSwitcher.add_lora

    def spy(self: ModelSwitcher, name: str, folder: Path, *rest: Any) -> None:
        added.append((name, folder))
        add_lora(self, name, folder, *rest)

    monkeypatch.setattr(ModelSwitcher, "add_lora", spy)
    page = site.page()
    response = client_of(site).post("/api/train", json=BODY)
    assert response.status_code == 202
    assert scripted.begun.wait(20)
    run = until_state(site, "training")
    assert (run["name"], run["steps"], run["seconds_left"]) == ("fox", 2, 7.0)
    assert (run["losses"], run["held_out"]) == ([[1, 2.5]], [[0, 3.0]])
    assert "fox is being trained; wait until it is done, or cancel it" in message_of(site)
    scripted.may_end.set()
    assert page.until("hello")["model"]["n_layers"]
    run = until_state(site, "done")
    assert (run["losses"], run["held_out"]) == ([[1, 2.5], [2, 2.0]], [[0, 3.0], [2, 2.9]])
    assert Path(run["folder"]) == tmp_path / "cache" / "adapters" / "fake-story" / "fox"
    assert added == [("fox", Path(run["folder"]))]
    site.engine.reload()  # as a change of the model does
    assert run_of(site)["state"] == "done", "a later load is no part of the training"
    assert page.until("hello")
    Path(run["folder"]).mkdir(parents=True)
    assert client_of(site).post("/api/train", json=BODY).status_code == 202
    again = until_state(site, "done")
    assert again["folder"] == f"{run['folder']}-2", "the first one may be loaded again"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModelError("transformers cannot load it"), "transformers cannot load it"),
        (ValueError("?"), "the server made a mistake; see its log"),
    ],
)
def test_a_training_that_fails_says_why(
    site: Site, scripted: type[ScriptedTraining], error: Exception, message: str
) -> None:
    scripted.error = error
    scripted.may_end.set()
    client_of(site).post("/api/train", json=BODY)
    assert until_state(site, "failed")["message"] == message
    assert site.engine.status.state == "ready"


def load_or_stop(loras: dict[str, Path], progress: Callable[[float, str], None]) -> FakeEngine:
    """Load a fake engine, or end its process if it has an adapter."""
    if loras:
        os._exit(7)
    return FakeEngine(FakeOptions())


def test_an_adapter_with_which_the_engine_keeps_stopping_ends_the_training(
    start_site: StartSite, scripted: type[ScriptedTraining], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "cache"))
    loras: dict[str, Path] = {}
    load = functools.partial(load_or_stop, loras)
    site = start_site(
        process=True, load=load, lora_folders=loras,
        switch=lambda settings, model: load, restart_policy=RestartPolicy(at_once=1, first=60),
    )  # fmt: skip
    scripted.may_end.set()
    assert client_of(site).post("/api/train", json=BODY).status_code == 202
    assert until_state(site, "failed")["message"] == (
        "the engine kept stopping with it, as the server's log says; the model is loaded as it was"
    )
    assert newest(site)["state"] == "failed"
    wait_until(lambda: site.engine.hello)
    assert client_of(site).post("/api/train", json=BODY).status_code == 202


def test_it_can_be_cancelled_and_begun_again(site: Site, scripted: type[ScriptedTraining]) -> None:
    client_of(site).post("/api/train", json=BODY)
    assert scripted.begun.wait(20)
    assert client_of(site).delete("/api/train").status_code == 202
    assert until_state(site, "cancelled")["folder"] == ""
    assert client_of(site).post("/api/train", json=BODY).status_code == 202


def test_a_cancel_before_it_has_a_process_is_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_job_late(*args: Any) -> Any:
        assert client_of(site).delete("/api/train").status_code == 202
        return make_job(*args)

    monkeypatch.setattr("app.train.trainer.make_job", make_job_late)
    assert client_of(site).post("/api/train", json=BODY).status_code == 202
    assert until_state(site, "cancelled")["losses"] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lines": ""}, "there are no lines to train on"),
        ({"name": "../fox"}, "expected a name of 1 to 64 letters"),
        ({"name": ".."}, "expected a name of 1 to 64 letters"),
        ({"settings": {"rank": 0}}, "expected a rank from 1 to 512, but got 0"),
        ({"settings": {"targets": ["router"]}}, "this model has no module 'router' to train"),
        ({"settings": {"depth": 2}}, "invalid body"),
        ({"lines": 7}, "invalid body"),
    ],
)
def test_bad_input_is_refused_in_words(site: Site, changes: Any, message: str) -> None:
    assert message in message_of(site, **changes)
    assert run_of(site) == {}


def test_adapters_are_added_to_those_that_loads_read(site: Site) -> None:
    loras = {f"a{i}": Path() for i in range(MAX_LORAS - 1)}
    settings = Settings(port=0)
    served = ServedModel(loader(), FakeTokenizer(), None)
    switcher = ModelSwitcher(site.engine, settings, lambda settings, model: loader(), served, loras)
    switcher.add_lora("fox", Path("folder"))
    assert site.engine.status.state == "loading"
    assert loras["fox"] == Path("folder")
    with pytest.raises(InvalidRequest, match="already changing to fake-story"):
        switcher.add_lora("fox", Path("other"))
    with pytest.raises(InvalidRequest, match="8 adapters already, which is the limit"):
        switcher.expect_room_for_lora("wolf")
    switcher.expect_room_for_lora("fox")


def load_or_wait(loras: dict[str, Path], progress: Callable[[float, str], None]) -> FakeEngine:
    """Load a fake engine, or hang if it has the adapter "fox" of the folder "new"."""
    while loras.get("fox") == Path("new"):
        time.sleep(0.01)
    return loader()(progress)


@pytest.mark.parametrize("before", [{}, {"fox": Path("old")}])
def test_loading_an_adapter_can_be_cancelled(
    start_site: StartSite, before: dict[str, Path]
) -> None:
    loras, ended = dict(before), queue.SimpleQueue[ModelChange]()
    load = functools.partial(load_or_wait, loras)
    engine = start_site(process=True, load=load).engine
    served = ServedModel(load, FakeTokenizer(), None)
    switcher = ModelSwitcher(engine, Settings(port=0), lambda *_: load, served, loras)
    switcher.add_lora("fox", Path("new"), ended.put)
    switcher.cancel()
    change = ended.get()
    assert switcher.offers().change == change
    assert (change.state, change.message) == ("cancelled", "the model is loaded as it was")
    assert loras == before
    wait_until(lambda: engine.status.state == "ready")


@pytest.mark.ci
def test_one_step_on_a_text(site: Site) -> None:
    response = client_of(site).post("/api/train/step", json={"text": "a b", "optimizer": "sgd"})
    assert response.status_code == 200
    assert response.json is not None
    ids = site.engine.tokenizer.encode("a b", specials=False)
    assert response.json["pieces"] == [site.engine.tokenizer.piece(id) for id in ids]
    step = response.json["step"]
    assert len(step["before"]) == len(step["after"]) == len(ids) - 1
    assert {matrix["layer"] for matrix in step["matrices"]} == {None, *range(8)}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": ""}, "a single token has no loss: it has no context; write more"),
        ({"text": "word " * 300}, "tokens, but at most 256 are accepted; shorten it"),
        ({"text": "a b", "learning_rate": -1.0}, "expected a learning rate above 0 and at most 1"),
        ({"text": "a b", "optimizer": "lion"}, "invalid body"),
        ({}, "invalid body"),
    ],
)
def test_a_step_that_cannot_be_taken(site: Site, body: Any, message: str) -> None:
    response = client_of(site).post("/api/train/step", json=body)
    assert response.status_code == 400
    assert response.json is not None
    assert message in response.json["error"]["message"]


def test_a_step_waits_for_no_training(site: Site, scripted: type[ScriptedTraining]) -> None:
    client_of(site).post("/api/train", json=BODY)
    assert scripted.begun.wait(20)
    response = client_of(site).post("/api/train/step", json={"text": "a b"})
    assert response.status_code == 429
    scripted.may_end.set()
    until_state(site, "done")


def test_an_adapter_that_is_not_loaded_is_not_found(site: Site) -> None:
    response = client_of(site).get("/api/loras/fox")
    assert response.status_code == 404
    assert response.json is not None
    assert response.json["error"]["message"] == "no adapter 'fox' is loaded; it has none"


def test_too_little_memory_is_said_before_anything_starts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.train.sizes.host_bytes", lambda: 10**8)
    assert "GB of memory, but 0.1 GB are free" in message_of(site)


def test_strangers_may_not_train(start_site: StartSite) -> None:
    for settings, allowed in (
        (Settings(port=0, allow_host=("box.lan",)), False),
        (Settings(port=0, allow_origin=("https://chat.example",)), False),
        (Settings(port=0, training="off"), False),
        (Settings(port=0, allow_host=("box.lan",), training="all"), True),
    ):
        site = start_site(settings=settings, switch=lambda settings, model: loader())
        offer = client_of(site).get("/api/train").json
        assert offer is not None
        assert (offer["why_not"] == "") == allowed
        if not allowed:
            assert message_of(site) == offer["why_not"]


def test_without_the_extra_the_page_says_what_to_install(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    offer = client_of(site).get("/api/train").json
    assert offer is not None
    assert offer["why_not"].endswith("pip install 'tokenglass[train]'")
    assert message_of(site) == offer["why_not"]


def test_a_server_that_may_not_change_its_model_trains_nothing() -> None:
    client = create_app(Settings(), FakeEngine(FakeOptions())).test_client()
    offer = client.get("/api/train").json
    assert offer is not None
    assert offer["why_not"].startswith("this server cannot train adapters")
    assert client.post("/api/train", json=BODY).status_code == 400
    assert client.delete("/api/train").status_code == 202
