"""How a change of the model ends once the engine loads: it is ready, fails, keeps stopping, or is
cancelled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from app import tale
from app.engine.backoff import RestartPolicy
from app.engine.supervisor import SupervisedEngine
from app.engine_client import ServedModel
from app.prompt.limited_tokenizer import LimitedTokenizer
from app.protocol.messages import Hello, Status
from tests.app.conftest import Site, StartSite
from tests.app.engine.processes import kill, wait_for
from tests.app.fake_engine import loader
from tests.app.models.changes import NAME, client_of, newest
from tests.app.models.fake_hub import FakeHub
from tests.app.page import wait_until


def test_a_failed_engine_can_be_changed_for_another(
    start_site: StartSite, offered: FakeHub
) -> None:
    """If the other fails, too, there is none to go back to."""
    loads = {
        NAME: loader(fail="config.json: cut off"),
        tale.NAME: loader(delay=0, n_layers=3),
    }
    site = start_site(
        process=True,
        fail="model.safetensors: cut off",
        wait=False,
        switch=lambda settings, model: loads[settings.model],
    )
    client = client_of(site)
    wait_until(lambda: site.engine.status.state == "failed")
    assert client.post("/api/models", json={"name": NAME}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "failed")
    assert newest(site)["message"] == site.engine.status.message == "config.json: cut off"
    assert client.post("/api/models", json={"name": tale.NAME}).status_code == 202
    wait_until(lambda: site.engine.hello is not None)
    assert site.engine.require_ready().model.n_layers == 3


def _stop(progress: Any) -> Any:
    """End the engine's process while it loads."""
    os._exit(7)


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (_stop, "the engine kept stopping with it, as the server's log says"),
        (loader(fail="model.safetensors: cut off"), "model.safetensors: cut off"),
    ],
    ids=["stops", "fails"],
)
def test_after_a_model_that_cannot_be_loaded_the_previous_one_is_loaded_again(
    start_site: StartSite, offered: FakeHub, load: Any, why: str
) -> None:
    loads = {NAME: load, tale.NAME: loader(delay=0, n_layers=3)}
    site = start_site(
        process=True,
        switch=lambda settings, model: loads[settings.model],
        restart_policy=RestartPolicy(at_once=1, first=60),
    )
    client, page, before = client_of(site), site.page(), site.engine.tokenizer
    for _ in range(2):
        assert client.post("/api/models", json={"name": NAME}).status_code == 202
        wait_until(lambda: newest(site)["state"] == "failed")
        assert newest(site)["message"] == f"{why}; the previous model is loaded again"
        assert page.until("hello")["model"]["n_layers"] == 8
        assert site.engine.tokenizer is before
    assert client.post("/api/models", json={"name": tale.NAME}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "done")
    assert site.engine.require_ready().model.n_layers == 3


def test_a_change_is_over_once_the_model_was_ready(site: Site) -> None:
    """What happens to its engine later is no part of it."""
    assert client_of(site).post("/api/models", json={"name": NAME}).status_code == 202
    wait_for(site.engine, "loading")
    assert isinstance(site.engine, SupervisedEngine)
    kill(site.engine)
    wait_for(site.engine, "restarting")
    wait_until(lambda: newest(site)["state"] == "done")
    assert client_of(site).post("/api/models", json={"name": tale.NAME}).status_code == 202


def test_nothing_is_changed_while_a_model_is_loading(
    start_site: StartSite, offered: FakeHub
) -> None:
    site = start_site(process=True, switch=lambda settings, model: loader(load_seconds=1.0))
    assert client_of(site).post("/api/models", json={"name": NAME}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "loading")
    response = client_of(site).post("/api/models", json={"name": tale.NAME})
    assert response.status_code == 400
    assert f"is already changing to {NAME} (loading)".encode() in response.data
    wait_until(lambda: newest(site)["state"] == "done")
    assert client_of(site).post("/api/models", json={"name": tale.NAME}).status_code == 202


def test_a_model_that_is_loading_can_be_cancelled(
    start_site: StartSite, offered: FakeHub, tmp_path: Path
) -> None:
    loads = {
        NAME: loader(loads_after=tmp_path / "never", n_layers=3),
        tale.NAME: loader(delay=0, n_layers=4),
    }
    site = start_site(process=True, switch=lambda settings, model: loads[settings.model])
    client, page = client_of(site), site.page()
    for _ in range(2):  # what was cancelled is not what a later one goes back to
        before = site.engine.tokenizer
        assert client.post("/api/models", json={"name": NAME}).status_code == 202
        wait_until(lambda: newest(site)["message"].startswith("reading weights"))
        tokenizer = site.engine.tokenizer
        assert client.delete("/api/models").status_code == 202
        wait_until(lambda: newest(site)["state"] == "cancelled")
        change = newest(site)
        assert change["name"] == NAME
        assert change["message"] == "the previous model is loaded again"
        assert page.until("hello")["model"]["n_layers"] == 8
        assert site.engine.tokenizer is before
        assert isinstance(tokenizer, LimitedTokenizer)
        assert tokenizer._pool._idle == [], "the process of its tokenizer is ended"
    assert client.post("/api/models", json={"name": tale.NAME}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "done")
    assert client.delete("/api/models").status_code == 202
    assert newest(site)["state"] == "done", "there was nothing to cancel"
    assert site.engine.require_ready().model.n_layers == 4
    assert client.post("/api/models", json={"name": NAME}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "loading")
    assert client.delete("/api/models").status_code == 202
    assert page.until("hello")["model"]["n_layers"] == 4


def test_a_cancel_just_before_or_after_a_load_is_obeyed_or_comes_too_late(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, switch = client_of(site), site.engine.switch

    def cancel(status: Status, hello: Hello | None) -> None:
        if hello is not None and hello.model.n_layers == 3:
            client.delete("/api/models")

    def cancel_and_switch(served: ServedModel) -> None:
        monkeypatch.setattr(site.engine, "switch", switch)
        client.delete("/api/models")
        switch(served)

    unlisten = site.engine.listen(cancel)
    assert client.post("/api/models", json={"name": NAME}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "done")
    assert site.engine.require_ready().model.n_layers == 3
    unlisten()
    monkeypatch.setattr(site.engine, "switch", cancel_and_switch)
    assert client.post("/api/models", json={"name": tale.NAME}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "cancelled")
    wait_until(lambda: site.engine.status.state == "ready")
