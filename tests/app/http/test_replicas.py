"""`/api/replicas`: what every engine has to do."""

from __future__ import annotations

import threading
import time

from flask.testing import FlaskClient

from app.engine_client import LocalEngine
from app.replicas.engine import ReplicatedEngine
from tests.app.conftest import StartSite
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import CHAT_TEMPLATE, FakeTokenizer


def test_one_engine_is_the_only_replica(http: FlaskClient) -> None:
    answer = http.get("/api/replicas")
    assert answer.headers["Cache-Control"] == "no-store"
    (replica,) = answer.get_json()["replicas"]
    assert replica["state"] == "ready"
    assert replica["stats"]["n_blocks"] > replica["stats"]["used_blocks"] >= 0


def test_every_replica_has_its_own_load(start_site: StartSite) -> None:
    """The last one is still loading, so it has no figures."""
    loading = threading.Event()
    load = loader(delay=0.0)

    def late(progress: object) -> object:
        loading.wait(20)
        return load(progress)  # type: ignore[arg-type]

    tokenizer = FakeTokenizer(CHAT_TEMPLATE)
    engines = [LocalEngine(each, tokenizer) for each in (load, load, late)]  # type: ignore[arg-type, list-item]
    site = start_site(client=ReplicatedEngine(engines))
    try:
        while engines[0].status.state != "ready":  # the site is ready when any of them is
            time.sleep(0.01)
        http = site.app.test_client()
        replicas = http.get("/api/replicas", base_url=site.url).get_json()["replicas"]
        assert [replica["state"] for replica in replicas[::2]] == ["ready", "loading"]
        assert replicas[0]["stats"]["n_running"] == 0
        assert replicas[2]["stats"] is None
    finally:
        loading.set()
