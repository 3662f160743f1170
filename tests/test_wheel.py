"""The wheel has all that the server and its page need outside of the checkout, and `pip install .`
in an empty environment gives a command that generates a token with the bundled model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import ROOT, serving

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed `tokenglass`."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", folder / "venv")
    run(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel)
    return folder / "venv/bin/tokenglass"


def run(*command: object) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_NO_INDEX")}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def installed_address(command: Path, tmp_path: Path) -> Iterator[str]:
    """Address of a server started in an empty folder."""
    with serving(command=[command], cwd=tmp_path) as address:
        yield address


@pytest.fixture
def unpacked_address(wheel: Path, tmp_path: Path) -> Iterator[str]:
    """Address of a server that runs from the content of the wheel, with the packages it needs taken
    from this environment."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (entry_points,) = tmp_path.glob("*.dist-info/entry_points.txt")
    assert "tokenglass = app.cli.main:main" in entry_points.read_text()
    where = subprocess.check_output(
        [sys.executable, "-c", "import app; print(app.__file__)"], cwd=tmp_path, text=True
    )
    assert Path(where).is_relative_to(tmp_path)
    with serving(cwd=tmp_path) as address:
        yield address


@pytest.mark.slow
def test_the_wheel_has_no_torch_and_streams_a_token(command: Path, installed_address: str) -> None:
    installed = run(command.parent / "python", "-m", "pip", "list")
    assert not re.search(r"^torch\b", installed, re.MULTILINE)
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 3, "stream": True}).encode()
    request = urllib.request.Request(
        f"{installed_address}v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        lines = [line.decode().strip() for line in answer if line.strip()]
    assert lines[-1] == "data: [DONE]"
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1]]
    assert "".join(texts)


@pytest.mark.ci
def test_the_page_and_its_files_are_served(unpacked_address: str) -> None:
    with urllib.request.urlopen(unpacked_address, timeout=20) as answer:
        page = answer.read().decode()
    paths = re.findall(r'(?:src|href)="(static/[^"]+)"', page)
    assert paths
    for path in paths:
        with urllib.request.urlopen(unpacked_address + path, timeout=20) as answer:
            assert answer.status == 200, path
