"""`/api/models` changes the model of a running server, or leaves the old one running."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from app import tale
from app.config import Settings
from app.engine_client import LocalEngine, ServedModel, UnavailableError
from app.http.models import MAX_SEARCHES
from app.models.find_model import Model, find_model
from app.models.free_memory import FreeMemory
from app.models.known import DEFAULT, known_models
from app.models.switching import ModelSwitcher
from app.prompt import limited_tokenizer
from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import MODEL_TYPES, InvalidRequest
from tests.app.conftest import Site, StartSite
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.models.changes import NAME, client_of, newest
from tests.app.models.fake_hub import FakeHub, Repo
from tests.app.page import PATIENCE_S, wait_until
from tests.app.prompt.hostile_tokenizers import grows
from tests.gpu.gguf import gguf_models


def test_the_models_on_offer_are_listed(site: Site, hub: FakeHub) -> None:
    found = client_of(site).get("/api/models").json
    assert found is not None
    assert found["current"] == site.engine.require_ready().model.name
    assert found["started_with"] == DEFAULT
    assert [each["name"] for each in found["bundled"]] == [tale.NAME, tale.MIXTURE]
    assert [m["name"] for m in found["known"]] == [m.name for m in known_models()]
    assert found["cached"] == []
    assert found["change"] is None
    assert {m.model_type for m in known_models()} <= set(MODEL_TYPES)
    for source in ("index", "hub"):
        sizes = [m.n_bytes for m in known_models() if m.source == source]
        assert sizes == sorted(sizes)


def test_the_model_is_changed_and_pages_hear_of_it(site: Site) -> None:
    page = site.page()
    before = site.engine.tokenizer
    page.send_message("generate", id="g", prompt="Once", params={"max_tokens": 400})
    page.until("token")
    response = client_of(site).post("/api/models", json={"name": NAME})
    assert response.status_code == 202
    assert response.json is not None
    assert (response.json["name"], response.json["state"]) == (NAME, "fetching")
    done = page.until("done", id="g")
    assert done["reason"] in ("cancelled", "error")
    hello = page.until("hello")
    assert hello["model"]["n_layers"] == 3
    wait_until(lambda: newest(site)["state"] == "done")
    assert isinstance(site.engine.tokenizer, LimitedTokenizer)
    assert site.engine.tokenizer is not before
    assert client_of(site).get("/api/weights").status_code == 200
    cached = client_of(site).get("/api/models").json
    assert cached is not None
    assert [model["name"] for model in cached["cached"]] == [NAME]


def test_the_process_of_the_tokenizer_before_is_ended(site: Site, offered: FakeHub) -> None:
    offered.repos["other/tale"] = offered.repos[NAME]
    for name in (NAME, "other/tale"):
        before = site.engine.tokenizer
        assert client_of(site).post("/api/models", json={"name": name}).status_code == 202
        wait_until(lambda: newest(site)["state"] == "done")
    assert isinstance(before, LimitedTokenizer)
    assert before._pool._idle == []
    assert isinstance(site.engine.tokenizer, LimitedTokenizer)
    assert site.engine.tokenizer.encode("Once")


def test_a_hostile_tokenizer_leaves_the_old_one(
    site: Site, offered: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_tokenizer, "LOAD_SECONDS", 5.0)
    bomb = json.loads(offered.repos[NAME].files["tokenizer.json"])
    grows("a")(bomb)
    changed = {"tokenizer.json": json.dumps(bomb).encode(), "tokenizer_config.json": b"{}"}
    offered.repos[NAME].files = {**offered.repos[NAME].files, **changed}
    response = client_of(site).post("/api/models", json={"name": NAME})
    assert response.status_code == 400
    assert response.json is not None
    message = response.json["error"]["message"]
    assert message.startswith(f"{NAME}: its tokenizer cannot be used: reading it ")
    assert served_on(site)


def served_on(site: Site) -> bool:
    hello = site.engine.hello
    return hello is not None and hello.model.n_layers == 8 and site.engine.status.state == "ready"


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_model_that_cannot_be_run_leaves_the_old_one(
    site: Site, offered: FakeHub, file: str
) -> None:
    offered.repos[NAME].files = {**offered.repos[NAME].files, file: b'{"model_type": "mamba2"}'}
    response = client_of(site).post("/api/models", json={"name": NAME})
    assert response.status_code == 400
    assert response.json is not None
    assert response.json["error"]["param"] == "name"
    assert f"{NAME}: {file}" in response.json["error"]["message"]
    assert newest(site)["state"] == "failed"
    assert served_on(site)


def test_a_model_that_does_not_fit_leaves_the_old_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.models.memory.UNCHECKED_BYTES", 0)
    monkeypatch.setattr(
        "app.models.memory.free_memory", lambda settings: FreeMemory(1000, None, True)
    )
    response = client_of(site).post("/api/models", json={"name": NAME, "dtype": "f32"})
    assert response.status_code == 400
    assert response.json is not None
    assert f"{NAME} at f32 needs" in response.json["error"]["message"]
    assert served_on(site)
    memory = site.engine.require_ready().memory
    held = memory.weights + memory.kv_cache + memory.work
    monkeypatch.setattr(
        "app.models.memory.free_memory", lambda _: FreeMemory(45_000_000 - held, None, True)
    )
    assert client_of(site).post("/api/models", json={"name": NAME}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "done")


def test_a_hub_that_cannot_be_asked_leaves_the_old_one(site: Site, offered: FakeHub) -> None:
    offered.faults.status = 500
    response = client_of(site).post("/api/models", json={"name": NAME})
    assert response.status_code == 503
    assert served_on(site)


def test_a_failed_download_leaves_the_old_one(site: Site, offered: FakeHub) -> None:
    offered.faults.damage.add("model.safetensors")
    assert client_of(site).post("/api/models", json={"name": NAME}).status_code in (202, 400)
    wait_until(lambda: newest(site)["state"] == "failed")
    assert served_on(site)


def change_tensors(
    change: Callable[[dict[str, Any]], object],
) -> Callable[[dict[str, bytes]], None]:
    """Replace model.safetensors with another one."""

    def changed(files: dict[str, bytes]) -> None:
        tensors = load(files["model.safetensors"])
        change(tensors)
        files["model.safetensors"] = save(tensors)

    return changed


def change_config(**values: Any) -> Callable[[dict[str, bytes]], None]:
    def changed(files: dict[str, bytes]) -> None:
        files["config.json"] = json.dumps(json.loads(files["config.json"]) | values).encode()

    return changed


def twice(files: dict[str, bytes]) -> None:
    """Return a header with one name twice, of the same length."""
    data = files["model.safetensors"]
    layers = (b"layers.0.mlp.up_proj", b"layers.1.mlp.up_proj")
    files["model.safetensors"] = data.replace(layers[1], layers[0], 1)


DOWN = "model.layers.1.mlp.down_proj.weight"
DAMAGE: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "missing": (change_tensors(lambda t: t.pop(DOWN)), f"no tensor {DOWN}"),
    "shape": (change_tensors(lambda t: t.update({DOWN: t[DOWN].T.copy()})), f"{DOWN} has shape"),
    "dtype": (change_tensors(lambda t: t.update({DOWN: t[DOWN].astype("i4")})), "has dtype I32"),
    "not a number": (
        change_tensors(lambda t: t[DOWN].__setitem__((3, 4), np.nan)),
        f"{DOWN}' holds",
    ),
    "too large": (
        change_tensors(lambda t: t.update({DOWN: t[DOWN].astype("f4") * 1e9})),
        "float16 ends at 65504",
    ),
    "twice": (twice, "is given twice"),
    "cut short": (
        lambda f: f.update({"model.safetensors": f["model.safetensors"][:-9]}),
        "truncated",
    ),
    "vocabulary": (change_config(vocab_size=5000), "has shape"),
    "header": (lambda f: f.update({"model.safetensors": b"\xff" * 4096}), "header"),
}


@pytest.mark.slow
def test_weights_that_are_damaged_leave_the_old_one(site: Site, offered: FakeHub) -> None:
    """The files are damaged on the hub itself, so their hashes match."""
    whole = dict(offered.repos[NAME].files)
    page, client = site.page(), client_of(site)
    for i, (what, (damage, words)) in enumerate(DAMAGE.items()):
        files = dict(whole)
        damage(files)
        offered.repos[NAME] = Repo(files, commit=f"{i:040x}")
        if client.post("/api/models", json={"name": NAME}).status_code == 202:
            wait_until(lambda: newest(site)["state"] == "failed")
        assert words in newest(site)["message"], what
        assert served_on(site), what
        page.send_message("generate", id=f"d{i}", prompt="Once", params={"max_tokens": 2})
        assert page.until("done", id=f"d{i}")["reason"] == "length"


def test_a_bit_that_flipped_in_the_cache_leaves_the_old_one(site: Site, offered: FakeHub) -> None:
    site.page()
    model = find_model(Settings(model=NAME))
    model.fetch()
    weights = (model.path / "model.safetensors").resolve()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert client_of(site).post("/api/models", json={"name": NAME}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "failed")
    assert "download it again with: hf download" in newest(site)["message"]
    assert served_on(site)


def test_one_change_at_a_time_and_it_can_be_cancelled(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(self: Model, tell: Any, cancelled: Callable[[], bool]) -> None:
        from app.models.transfer import Cancelled, Transfer

        tell(Transfer("model.safetensors", 1, 4, 1, 4, 1.0))
        wait_until(cancelled)
        raise Cancelled

    monkeypatch.setattr(Model, "fetch", fetch)
    client = client_of(site)
    assert client.post("/api/models", json={"name": NAME}).status_code == 202
    wait_until(lambda: newest(site)["progress"] == 0.25)
    again = client.post("/api/models", json={"name": NAME})
    assert again.status_code == 400
    assert b"is already changing" in again.data
    assert client.delete("/api/models").status_code == 202
    wait_until(lambda: newest(site)["state"] == "cancelled")
    assert served_on(site)


def test_any_model_of_the_hub_can_be_taken(site: Site) -> None:
    assert client_of(site).post("/api/models", json={"name": "some/tale"}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "done")
    assert site.engine.require_ready().model.n_layers == 3


@pytest.mark.slow
def test_a_gguf_file_of_the_hub_can_be_taken(site: Site, hub: FakeHub, tmp_path: Path) -> None:
    path = gguf_models.write(tale.model_dir(), tmp_path / "tale-Q4_0.gguf", "Q4_0")
    hub.repos["some/tale-GGUF"] = Repo({path.name: path.read_bytes(), "tale-Q8_0.gguf": b"GGUF"})
    name = "some/tale-GGUF:Q4_0"
    refused = client_of(site).post("/api/models", json={"name": "some/tale-GGUF"})
    assert refused.status_code == 400
    assert b"has several GGUF models; choose one as" in refused.data
    assert served_on(site)
    assert client_of(site).post("/api/models", json={"name": name}).status_code == 202
    wait_until(lambda: newest(site)["state"] == "done")
    assert client_of(site).get("/api/weights").status_code == 200
    offers = client_of(site).get("/api/models").json
    assert offers is not None
    assert [model["name"] for model in offers["cached"]] == [f"some/tale-GGUF:{path.name}"]


FOLDERS = ["/etc", "..", "", "~", "./app/tale/model", "app/tale", "a/../b", str(tale.model_dir())]
"""Names of folders of the server."""
UNSAFE = (
    Settings(port=0, model_paths=False),
    Settings(port=0, host="0.0.0.0", token="secret"),
    Settings(port=0, allow_host=("box.lan",)),
    Settings(port=0, allow_origin=("https://chat.example.org",)),
)
"""Settings with which a page may not name a path."""


def test_no_folder_of_the_server_can_be_taken(start_site: StartSite, hub: FakeHub) -> None:
    switch = lambda settings, model: loader(n_layers=3)  # noqa: E731
    site = start_site(process=True, switch=switch, settings=UNSAFE[0])
    for name in FOLDERS:
        response = client_of(site).post("/api/models", json={"name": name})
        assert response.status_code == 400, name
        assert b"expected OWNER/MODEL on the hub" in response.data, name
    assert not hub.asked
    assert served_on(site)


@pytest.mark.parametrize("settings", UNSAFE)
def test_a_page_of_another_machine_cannot_name_a_path(hub: FakeHub, settings: Settings) -> None:
    engine = LocalEngine(loader(), FakeTokenizer(), tale.model_dir())
    served = ServedModel(loader(), engine.tokenizer, engine.path)
    switcher = ModelSwitcher(engine, settings, lambda settings, model: loader(), served)
    assert not switcher.offers().paths
    with pytest.raises(InvalidRequest, match=r"expected OWNER/MODEL .* tokenglass run FOLDER"):
        switcher.begin(str(tale.model_dir()))


def test_a_page_of_this_machine_takes_a_folder_or_a_file_by_its_path(
    site: Site, hub: FakeHub, tmp_path: Path
) -> None:
    offers = client_of(site).get("/api/models").json
    assert offers is not None
    assert offers["paths"] is True
    for name in ("./app/tale/model", "~", "..", "app/tale"):
        response = client_of(site).post("/api/models", json={"name": name})
        assert response.status_code == 400
        assert b"or the whole path of a folder or GGUF file" in response.data
    missing = client_of(site).post("/api/models", json={"name": str(tmp_path / "none")})
    assert missing.status_code == 400
    assert b"there is no folder or file" in missing.data
    assert served_on(site)
    file = gguf_models.write(tale.model_dir(), tmp_path / "mine.gguf", "Q4_0")
    for path in (tale.model_dir(), file):
        assert client_of(site).post("/api/models", json={"name": str(path)}).status_code == 202
        wait_until(lambda: newest(site)["state"] == "done")
        assert site.engine.path == path
    assert not hub.asked


def test_the_hub_is_searched_for_what_the_engine_reads(site: Site, hub: FakeHub) -> None:
    hub.repos["other/story-GGUF"] = Repo({}, tags=("gguf",))
    hub.repos["other/story-bert"] = Repo({}, tags=("safetensors", "bert"))
    hub.repos["other/story-closed"] = Repo({}, gated=True)
    hub.repos["other/story"] = Repo({}, tags=("safetensors", "qwen3"))
    client = client_of(site)
    found = client.get("/api/models/search?q=story").json
    assert found == {"names": ["other/story-GGUF", "other/story"]}
    assert client.get("/api/models/search?q=%20").status_code == 400
    hub.faults.status = 500
    refused = client.get("/api/models/search?q=story")
    assert refused.status_code == 503
    assert b"the hub answered the search with 500" in refused.data


def test_few_searches_of_the_hub_wait_at_once(
    site: Site, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has one of the server's connections meanwhile."""
    entered, go = threading.Semaphore(0), threading.Event()

    def search(text: str) -> list[str]:
        entered.release()
        assert go.wait(PATIENCE_S)
        return [text]

    def ask() -> int:
        return client_of(site).get("/api/models/search?q=story").status_code

    monkeypatch.setattr("app.http.models.search_models", search)
    with ThreadPoolExecutor(MAX_SEARCHES) as pool:
        asked = [pool.submit(ask) for _ in range(MAX_SEARCHES)]
        try:
            assert all(entered.acquire(timeout=PATIENCE_S) for _ in asked)
            assert ask() == 429
        finally:
            go.set()
    assert [one.result() for one in asked] == [200] * MAX_SEARCHES
    assert ask() == 200


MALFORMED = (
    b"", b"{", b"[]", b'{"name": 7}', b'{"dtype": "f16"}', b'{"name": "a", "path": "/"}',
    b'{"name": "a", "dtype": "q5"}', b'\xff', b'{"name": "\xff"}', b'{"name": "a\xc3"}',
    b'{"name": "\\ud83d"}', b'{"name": "a/b\\u0000"}', b'{"name": "\xed\xa0\x80"}',
    b'{"name":' + b"[" * 100_000,
)  # fmt: skip


def test_malformed_bodies_are_refused(site: Site) -> None:
    for body in MALFORMED:
        response = client_of(site).post("/api/models", data=body, content_type="application/json")
        assert response.status_code == 400, body[:40]
        assert served_on(site), body[:40]


def test_a_form_of_another_site_cannot_switch_the_model(site: Site) -> None:
    body = json.dumps({"name": NAME})
    response = client_of(site).post("/api/models", data=body, content_type="text/plain")
    assert response.status_code == 400
    assert newest(site) == {}


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_switching_is_guarded_like_every_route(
    start_site: StartSite, hub: FakeHub, method: str
) -> None:
    site = start_site(
        settings=Settings(port=0, token="secret"), switch=lambda settings, model: loader()
    )

    def status(**headers: str) -> int:
        return (
            client_of(site)
            .open("/api/models", method=method, json={"name": "x/y"}, headers=headers)
            .status_code
        )

    good = {"Authorization": "Bearer secret"}
    assert status() == 401
    assert status(**good) in (200, 202, 400)
    assert status(**good, Origin="http://evil.example") == 403
    assert status(**good, Host="evil.example") == 403
    assert status(**good, **{"Sec-Fetch-Site": "cross-site"}) == 403


def test_without_switching_there_are_no_routes(start_site: StartSite) -> None:
    assert client_of(start_site()).get("/api/models").status_code == 404


def test_an_engine_in_this_process_keeps_its_model() -> None:
    engine = LocalEngine(loader(), FakeTokenizer())
    with pytest.raises(UnavailableError, match="cannot be changed"):
        engine.switch(ServedModel(loader(), FakeTokenizer(), None))
