"""A server gives the running model to visitors' browsers: whole, checked, and to those only who may
use it."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from app import create_app, tale
from app.config import Settings
from app.engine_client import LocalEngine
from app.local import exports as exporting
from gpu import Footprint, LoadOptions, Tokenizer
from gpu.export.plan_format import decode_plan
from tests.app.conftest import StartSite, wait_ready
from tests.app.engine.processes import assert_ends_with_server
from tests.app.fake_engine import loader
from tests.gpu.lora import random_loras


@pytest.fixture(scope="module")
def loras() -> dict[str, Path]:
    """Folders of an adapter of the bundled model, and of one that is not loaded."""
    return {
        "tone": random_loras.of_model(tale.model_dir(), "attention"),
        "foreign": random_loras.folder("qwen2", "all"),
    }


@pytest.fixture(scope="module")
def http(loras: dict[str, Path]) -> Iterator[FlaskClient]:
    """Client of a server that runs the bundled model with an adapter, as far as its files go."""
    path = tale.model_dir()
    engine = LocalEngine(loader(delay=0.0, loras=("tone",)), Tokenizer.load(path), path)
    engine.start()
    wait_ready(engine)
    yield create_app(Settings(port=0), engine, loras=loras).test_client()
    engine.close()


def state_of(http: FlaskClient, dtype: str) -> dict[str, Any]:
    offers = http.get("/api/local").get_json()["offers"]
    (found,) = [offer["export"] for offer in offers if offer["dtype"] == dtype]
    return dict(found)


def wait_done(http: FlaskClient, dtype: str) -> dict[str, Any]:
    while (found := state_of(http, dtype))["state"] == "writing":  # pytest ends what takes too long
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def base(http: FlaskClient) -> str:
    """Address of the export as q4."""
    begun = http.post("/api/local", json={"dtype": "q4"})
    assert begun.status_code == 202
    assert begun.get_json()["state"] == "writing"
    done = wait_done(http, "q4")
    assert done["state"] == "ready", done
    return "/" + str(done["base"])


def test_every_storage_type_is_offered_with_what_it_needs(
    http: FlaskClient, loras: dict[str, Path]
) -> None:
    offers = http.get("/api/local").get_json()
    assert not offers["why_not"]
    assert offers["loras"] == ["tone"]
    for offer in offers["offers"]:
        options = LoadOptions(dtype=offer["dtype"], slots=2, loras={"tone": loras["tone"]})
        need = Footprint.of(tale.model_dir(), options)
        assert offer["weights"] == need.weights + need.adapters > need.weights
    assert [offer["dtype"] for offer in offers["offers"]] == ["f32", "f16", "q8", "q4"]
    memory = [offer["memory"] for offer in offers["offers"]]
    assert memory == sorted(memory, reverse=True)


@pytest.mark.slow
def test_all_files_of_the_export_are_served(http: FlaskClient, base: str) -> None:
    manifest = http.get(f"{base}manifest.json").get_json()
    assert manifest["model"]["dtype"] == "q4"
    model = manifest["model"]
    files = [*model["plans"].values(), *model["weights"]["pieces"], *manifest["files"].values()]
    assert len(files) >= 5
    for piece in files:
        data = http.get(base + piece["file"]).data
        assert hashlib.sha256(data).hexdigest() == piece["sha256"]
        part = http.get(base + piece["file"], headers={"Range": "bytes=5-9"})
        assert (part.status_code, part.data) == (206, data[5:10])


@pytest.mark.ci
def test_the_loaded_adapters_are_in_the_export(http: FlaskClient, base: str) -> None:
    plans = http.get(f"{base}manifest.json").get_json()["model"]["plans"]
    for plan in plans.values():
        found = decode_plan(http.get(base + plan["file"]).data).model.loras
        assert [lora.name for lora in found] == ["tone"]


def test_an_export_is_written_once(http: FlaskClient, base: str) -> None:
    assert http.post("/api/local", json={"dtype": "q4"}).get_json()["state"] == "ready"


@pytest.mark.parametrize(
    "path",
    [
        "../q4/manifest.json",
        "../" * 20 + "etc/passwd",
        "%2e%2e/q4/manifest.json",
        "weights",
        "nothing.bin",
    ],
)
def test_nothing_else_is_served(http: FlaskClient, base: str, path: str) -> None:
    assert http.get(base + path).status_code in (400, 404)


def test_an_unknown_export_is_refused(http: FlaskClient, base: str) -> None:
    for address in (base.replace("q4", "q8"), "/api/local/0123456789abcdef/q4/"):
        answer = http.get(f"{address}manifest.json")
        assert answer.status_code == 400
        assert "this export is gone" in answer.get_json()["error"]["message"]


@pytest.mark.parametrize("body", [{}, {"dtype": "q2"}, {"dtype": "q8", "path": "/"}, [], None])
def test_bad_requests_are_refused(http: FlaskClient, body: Any) -> None:
    answer = http.post("/api/local", json=body)
    assert answer.status_code == 400
    assert answer.get_json()["error"]["param"] == "dtype"
    assert http.post("/api/local", data={"dtype": "q8"}).status_code == 400


def test_a_full_disk_is_said(http: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "SPARE_BYTES", 1 << 60)
    http.post("/api/local", json={"dtype": "f32"})
    failed = wait_done(http, "f32")
    assert failed["state"] == "failed"
    assert "MB left; free some, or set TMPDIR" in failed["message"]


def test_an_adapter_of_the_same_name_has_an_export_of_its_own(
    http: FlaskClient, base: str, loras: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a second training."""
    monkeypatch.setitem(loras, "tone", random_loras.of_model(tale.model_dir(), "all"))
    assert state_of(http, "q4")["state"] == "absent"
    assert http.get(f"{base}manifest.json").status_code == 400


def test_a_model_without_a_tokenizer_file_is_refused(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(tale.model_dir() / name, tmp_path / name)
    engine = LocalEngine(loader(delay=0.0), Tokenizer.load(tale.model_dir()), tmp_path)
    engine.start()
    wait_ready(engine)
    http = create_app(Settings(port=0), engine).test_client()
    http.post("/api/local", json={"dtype": "q8"})
    failed = wait_done(http, "q8")
    assert failed["state"] == "failed"
    assert "tokenizer.json: not found" in failed["message"]
    engine.close()


def test_the_token_is_needed_and_other_origins_are_refused(start_site: StartSite) -> None:
    site = start_site(settings=Settings(port=0, token="secret"))
    http = site.app.test_client()
    assert http.get("/api/local").status_code == 401
    assert http.get("/api/local/0123456789abcdef/q4/manifest.json").status_code == 401
    token = {"Authorization": "Bearer secret"}
    assert http.get("/api/local", headers=token).status_code == 200
    assert http.get("/api/local", headers=token | {"Origin": "http://evil"}).status_code == 403
    assert http.get("/api/local", headers=token | {"Host": "evil"}).status_code == 403


KILLED_SERVER = """
import multiprocessing, os, signal
from pathlib import Path
from app import tale
from app.local.exports import ExportJob, _write_in_process
from app.local.model_files import ChatFormat, ManifestHead
from gpu import LoadOptions

def die(state):
    (process,) = multiprocessing.active_children()
    os.kill(process.pid, signal.SIGSTOP)
    Path("pid").write_text(str(process.pid))
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    head = ManifestHead("1", "tale", ChatFormat({}, None, None, (), None, None))
    options = LoadOptions(dtype="q4", slots=2)
    _write_in_process(ExportJob(tale.model_dir(), head, options, Path("site")), die)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells processes of it")
def test_a_frozen_export_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    """It would keep its memory for ever."""
    (tmp_path / "site").mkdir()
    assert_ends_with_server(KILLED_SERVER, tmp_path)
