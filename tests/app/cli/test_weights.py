"""`/api/weights` and `tokenglass weights` show the tensors of the model, and of no other file."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from flask.testing import FlaskClient
from safetensors.numpy import load_file, save_file

from app import create_app, tale
from app.cli.main import main
from app.cli.weights import HEADINGS, weight_lines
from app.config import Settings
from app.models.memory import dtype_of_files
from gpu import DtypeChoice, Inventory, TensorSummary
from tests.app.cli.test_untrusted import Terminal
from tests.app.conftest import Site, StartSite
from tests.app.page import PATIENCE_S
from tests.gpu.models import random_llama

FOLDER = tale.model_dir()
NAME = "model.layers.3.mlp.down_proj.weight"


def test_the_inventory_of_the_running_model(http: FlaskClient) -> None:
    response = http.get("/api/weights")
    assert response.status_code == 200
    assert response.mimetype == "application/json"
    assert response.json is not None
    assert response.json.pop("model") == "fake-story"
    assert msgspec.convert(response.json, Inventory) == Inventory.from_folder(FOLDER, "f16")


def test_one_tensor(http: FlaskClient) -> None:
    response = http.get(f"/api/weights/{NAME}")
    assert response.status_code == 200
    summary = msgspec.json.decode(response.data, type=TensorSummary)
    assert summary == TensorSummary.from_folder(FOLDER, NAME)
    assert sum(summary.counts) == summary.n == 192 * 384


def test_the_files_are_those_of_the_engines_model(start_site: StartSite) -> None:
    folder = random_llama.folder("tiny")
    site = start_site()
    site.engine.path = folder
    client = site.app.test_client()
    found = client.get("/api/weights").json
    assert found is not None
    assert found["parameters"] == Inventory.from_folder(folder).parameters
    assert client.get("/api/weights/model.norm.weight").status_code == 200
    assert client.get(f"/api/weights/{NAME}").status_code == 400


def test_pytorch_reports_no_storage_formats(start_site: StartSite) -> None:
    site = start_site()
    hello = site.engine.require_ready()
    device = dataclasses.replace(hello.device, backend="torch")
    site.engine._hello = msgspec.structs.replace(hello, device=device)
    found = site.app.test_client().get("/api/weights").json
    assert found is not None
    assert (found["dtype"], found["device_bytes"]) == (None, None)


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "config.json",
        "../config.json",
        "%2e%2e/config.json",
        "%2e%2e%2f%2e%2e%2fconfig.json",
        "/etc/passwd",
        "%00",
    ],
)
def test_a_name_that_is_no_tensor_is_refused(http: FlaskClient, name: str) -> None:
    response = http.get(f"/api/weights/{name}", follow_redirects=True)
    assert response.status_code in (400, 404)
    assert response.json is not None
    if response.status_code == 400:
        assert response.json["error"]["param"] == "name"
        assert "the checkpoint has no tensor" in response.json["error"]["message"]


@pytest.mark.parametrize("path", ["/api/weights", f"/api/weights/{NAME}"])
@pytest.mark.parametrize("model", ["/etc", "..", str(FOLDER), "", "tale-3m"])
def test_no_other_model_can_be_asked_for(http: FlaskClient, path: str, model: str) -> None:
    response = http.get(path, query_string={"model": model})
    assert response.status_code == 404
    assert response.json is not None
    assert response.json["error"]["param"] == "model"
    assert http.get(path, query_string={"model": "fake-story"}).status_code == 200


@pytest.mark.parametrize("path", ["/api/weights", f"/api/weights/{NAME}", "/api/local"])
def test_a_model_without_files_here_is_not_answered_from_anothers(
    start_site: StartSite, path: str
) -> None:
    site = start_site()
    site.engine.path = None
    response = site.app.test_client().get(path)
    assert response.status_code == 503
    assert response.json is not None
    assert "files of this model are not on this server" in response.json["error"]["message"]


@pytest.mark.parametrize("path", ["/api/weights", f"/api/weights/{NAME}"])
def test_while_the_model_is_loading(loading_site: Site, path: str) -> None:
    response = loading_site.app.test_client().get(path)
    assert response.status_code == 503
    assert "Retry-After" in response.headers


@pytest.mark.parametrize("path", ["/api/weights", f"/api/weights/{NAME}"])
def test_the_weights_route_is_guarded_like_every_route(start_site: StartSite, path: str) -> None:
    client = start_site(settings=Settings(port=0, token="secret")).app.test_client()
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200
    foreign = {"Authorization": "Bearer secret", "Origin": "http://evil.example"}
    assert client.get(path, headers=foreign).status_code == 403
    assert client.get(path, environ_overrides={"HTTP_HOST": "evil.example"}).status_code == 403
    assert client.post(path, headers={"Authorization": "Bearer secret"}).status_code == 405


def test_missing_model_files_are_reported(start_site: StartSite, tmp_path: Path) -> None:
    site = start_site()
    site.engine.path = tmp_path
    response = site.app.test_client().get("/api/weights")
    assert response.status_code == 500
    assert response.json is not None
    assert "config.json" in response.json["error"]["message"]


def test_tensors_are_read_one_at_a_time(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(Settings(port=0), start_site().engine)
    summary, running, most = TensorSummary.from_folder(FOLDER, "model.norm.weight"), [], []

    def slow(*_: Any) -> TensorSummary:
        running.append(None)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()
        return summary

    monkeypatch.setattr(TensorSummary, "from_folder", slow)
    threads = [
        threading.Thread(target=lambda: app.test_client().get(f"/api/weights/{NAME}"))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_a_client_has_as_many_tensors_read_as_it_may_have_runs(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request that waits for its turn has a connection, which the page would lack."""
    app = start_site(n_slots=1, queue=0).app
    summary = TensorSummary.from_folder(FOLDER, "model.norm.weight")
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: Any) -> TensorSummary:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return summary

    def ask() -> int:
        return app.test_client().get(f"/api/weights/{NAME}").status_code

    monkeypatch.setattr(TensorSummary, "from_folder", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask)
        assert begun.wait(PATIENCE_S)
        second = pool.submit(ask)
        wait([second], PATIENCE_S)
        go_on.set()
        assert (first.result(), second.result()) == (200, 429)


def test_a_client_has_as_many_adapters_read_as_it_may_have_runs(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = start_site(n_slots=1, queue=0, loras=("fox",)).engine
    client = create_app(Settings(port=0), engine, loras={"fox": tmp_path}).test_client()
    statuses: list[int] = []

    def changes(*_: Any) -> tuple[()]:
        if not statuses:
            statuses.append(0)
            statuses[0] = client.get("/api/loras/fox").status_code
        return ()

    monkeypatch.setattr("app.http.loras.lora_changes", changes)
    statuses.append(client.get("/api/loras/fox").status_code)
    assert statuses == [429, 200]


# ---- the command -----------------------------------------------------------------------------


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["weights", *args], catch_exceptions=False)


def test_the_command_lists_the_bundled_model() -> None:
    result = run()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines == weight_lines(Inventory.from_folder(FOLDER, "f16"), dtype_of_files(FOLDER))
    assert lines[0].split() == " ".join(HEADINGS).split()
    down = next(line for line in lines if line.startswith(NAME))
    assert re.split(r"\s{2,}", down) == [
        NAME, "192×384", "F16", "73,728", "2.14%", "147,456", "f16, 147,456", "layer03.mlp.down",
    ]  # fmt: skip
    head = next(line for line in lines if line.startswith("lm_head.weight"))
    assert "= model.embed_tokens.weight" in head
    assert "3,443,904 parameters, 6,887,808 bytes in the files" in lines[-3]
    assert lines[-2] == "f16, because the weights are not quantised"
    assert lines[-1].endswith("16 pairs of dimensions with wavelengths of 6.3 to 35,333 tokens")


def test_the_command_for_a_model_and_a_storage_type() -> None:
    folder = random_llama.folder("llama3_old_shards")
    inventory = Inventory.from_folder(folder, "q4")
    result = run(str(folder), "--dtype", "q4")
    lines = result.stdout.splitlines()
    assert lines == weight_lines(inventory, DtypeChoice("q4"))
    assert f"on the device as q4 {inventory.device_bytes:,} bytes" in lines[-2]
    assert "llama3 scaling × 8" in lines[-1]
    assert sum(line.startswith("model.") for line in lines) + 1 == len(inventory.tensors)


def test_columns_are_aligned() -> None:
    lines = run().stdout.splitlines()
    column = lines[0].index("stored")
    for line in lines[1:-4]:
        assert line[column - 2 : column] == "  "
        assert line[column] != " "


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("/nowhere", "there is no folder or file '/nowhere'"),
        (__file__, f"{__file__}: not a folder"),
    ],
)
def test_a_folder_that_is_no_model(folder: str, message: str) -> None:
    result = run(folder)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {message}")


def test_names_in_a_file_cannot_control_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "model")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "\x1b]0;title\x07\nname": np.zeros(1, np.float32)}, file)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    main(["weights", str(folder)], standalone_mode=False)
    lines = terminal.getvalue().splitlines()
    (row,) = (line for line in lines if "name" in line)
    assert row.startswith("�]0;title��name ")
