"""GGUF files of the hub are chosen by name, checked by their headers, and downloaded."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from huggingface_hub import constants

from app import tale
from app.config import Settings
from app.models.cached import cached_models
from app.models.find_model import Model, find_model
from app.models.free_memory import FreeMemory
from app.models.hub import HubFile
from app.models.hub_errors import HubError, NotOnHub
from app.models.hub_gguf import choose_files, group_gguf_files, split_name
from gpu import DeviceError, Inventory, ModelError
from gpu.gguf.file import open_gguf
from tests.app.models.fake_hub import FakeHub, Repo
from tests.gpu.gguf import gguf_models

REPO = "some/tale-GGUF"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("gguf")
    made = {}
    for kind in ("Q8_0", "Q4_0"):
        path = gguf_models.write(tale.model_dir(), folder / f"{kind}.gguf", kind)
        made[f"tale-{kind}.gguf"] = path.read_bytes()
    return made


@pytest.fixture(scope="module")
def parts(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Split a GGUF file as llama.cpp's gguf-split does."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "whole.gguf").write_bytes(files["tale-Q4_0.gguf"])
    made = gguf_models.split(folder / "whole.gguf", folder / "tale-Q4_0", 3)
    return {path.name: path.read_bytes() for path in made}


@pytest.fixture
def repo(hub: FakeHub, files: dict[str, bytes]) -> Repo:
    hub.repos[REPO] = Repo({"README.md": b"#", **files})
    return hub.repos[REPO]


def find(name: str = f"{REPO}:Q4_0", **settings: Any) -> Model:
    return find_model(Settings(model=name, **settings))


def fetched_bytes(hub: FakeHub) -> int:
    """Return the number of bytes that were requested by range."""
    ranges = [a.range for a in hub.asked if a.method == "GET" and a.path.startswith("/cdn/")]
    spans = [range.removeprefix("bytes=").split("-") for range in ranges if range]
    return sum(int(end) - int(begin) + 1 for begin, end in spans if end)


def test_a_gguf_file_is_checked_by_its_header_before_it_is_fetched(
    hub: FakeHub, repo: Repo
) -> None:
    model = find()
    name = "tale-Q4_0.gguf"
    assert model.name == f"{REPO}:Q4_0"
    assert [file.name for file in model.missing] == [name]
    assert not model.path.exists()
    assert fetched_bytes(hub) <= 1 << 20
    assert model.tokenizer.encode("Once upon a time")
    model.fetch()
    assert model.path.read_bytes() == repo.files[name]
    assert Inventory.from_folder(model.path).parameters > 3_000_000
    asked = len(hub.asked)
    again = find()
    assert (again.path, again.missing) == (model.path, ())
    assert all("/cdn/" not in a.path for a in hub.asked[asked:])
    assert (f"{REPO}:{name}", len(repo.files[name])) in cached_models()


def test_the_header_only_file_is_deleted(hub: FakeHub, repo: Repo, tmp_path: Path) -> None:
    find()
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.gguf"))


@pytest.mark.parametrize("what", ["q8_0", "Q8_0", "tale-Q8_0.gguf"])
def test_a_gguf_file_is_named_by_type_or_file(repo: Repo, what: str) -> None:
    assert find(f"{REPO}:{what}").path.name == "tale-Q8_0.gguf"


@pytest.mark.parametrize("name", [REPO, f"{REPO}:Q5_K_M", f"{REPO}:tale"])
def test_several_gguf_files_are_listed_with_their_sizes(repo: Repo, name: str) -> None:
    with pytest.raises(
        NotOnHub, match=r"choose one .* tale-Q4_0 \(0\.00 GB\), tale-Q8_0 \(0\.00 GB\)"
    ):
        find(name)


def test_the_only_gguf_file_needs_no_name(repo: Repo) -> None:
    del repo.files["tale-Q8_0.gguf"]
    assert find(REPO).path.name == "tale-Q4_0.gguf"


def test_safetensors_are_preferred_to_gguf(hub: FakeHub, files: dict[str, bytes]) -> None:
    hub.repos["some/tale"].files.update(files)
    assert find("some/tale").path.is_dir()
    assert find("some/tale:Q4_0").path.name == "tale-Q4_0.gguf"


def test_parts_are_one_model(
    hub: FakeHub, files: dict[str, bytes], parts: dict[str, bytes]
) -> None:
    hub.repos[REPO] = Repo({f"Q4_0/{name}": data for name, data in parts.items()})
    model = find()
    assert len(model.missing) == 3
    assert model.snapshot is not None
    model.snapshot.fetch(model.missing[:2])
    assert cached_models() == []
    model.fetch()
    assert model.path.name == "tale-Q4_0-00001-of-00003.gguf"
    model.path.with_name("mmproj-tale-F16.gguf").write_bytes(b"of images")
    n_bytes = sum(map(len, parts.values()))
    assert cached_models() == [(f"{REPO}:Q4_0/{model.path.name}", n_bytes)]
    whole = model.path.with_name("whole.gguf")
    whole.write_bytes(files["tale-Q4_0.gguf"])
    got, want = open_gguf(model.path), open_gguf(whole)
    assert got.tensors.keys() == want.tensors.keys()
    assert all((got.tensors[n].data == want.tensors[n].data).all() for n in want.tensors)
    assert Inventory.from_folder(model.path).parameters == Inventory.from_folder(whole).parameters


def test_a_model_without_one_of_its_parts_is_not_offered(
    hub: FakeHub, parts: dict[str, bytes]
) -> None:
    hub.repos[REPO] = Repo(dict(list(parts.items())[:2]))
    with pytest.raises(NotOnHub, match="has no complete GGUF model"):
        find()


def test_a_model_that_does_not_fit_is_refused_by_its_header(
    hub: FakeHub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.models.memory.UNCHECKED_BYTES", 0)
    monkeypatch.setattr(
        "app.models.memory.free_memory", lambda settings: FreeMemory(1_000_000, None, True)
    )
    with pytest.raises(DeviceError, match=f"{REPO}:Q4_0 at q4 needs"):
        find()
    assert fetched_bytes(hub) <= 1 << 20


def test_a_header_longer_than_the_first_bytes_is_read_on(
    hub: FakeHub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu.gguf.stub.FIRST_BYTES", 1000)
    find().fetch()
    ranges = [a.range for a in hub.asked if a.path.startswith("/cdn/")]
    assert ranges[:3] == ["bytes=0-999", "bytes=1000-3999", "bytes=4000-15999"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"GGML" + data[4:], "it is not a GGUF file"),
        (lambda data: data[:16] + struct.pack("<Q", 1 << 40) + data[24:], "values; at most 65536"),
        (lambda data: data[:5000], "the file ends before"),
        (lambda data: data[:-5000], "is truncated"),
        (lambda data: data.replace(b"llama", b"mamba"), "'mamba' is not supported"),
    ],
)
def test_an_unsupported_model_is_refused_before_it_is_fetched(
    hub: FakeHub, repo: Repo, damage: Callable[[bytes], bytes], words: str
) -> None:
    repo.files["tale-Q4_0.gguf"] = damage(repo.files["tale-Q4_0.gguf"])
    with pytest.raises(ModelError, match=words) as refused:
        find()
    assert str(refused.value).startswith(f"{REPO}:Q4_0: tale-Q4_0.gguf")


def test_damage_in_transfer_is_found(hub: FakeHub, repo: Repo) -> None:
    model = find()
    hub.faults.damage.add("tale-Q4_0.gguf")
    with pytest.raises(HubError, match="is damaged"):
        model.fetch()
    assert not model.path.exists()


def test_an_interrupted_download_is_resumed(hub: FakeHub, repo: Repo) -> None:
    model = find()
    hub.faults.cut["tale-Q4_0.gguf"] = [1_200_000]
    model.fetch()
    assert model.path.read_bytes() == repo.files["tale-Q4_0.gguf"]


def test_cached_files_are_used_offline(
    hub: FakeHub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    find().fetch()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find().missing == ()
    with pytest.raises(NotOnHub, match=r"no GGUF models 'Q8_0'; choose one .* from: tale-Q4_0"):
        find(f"{REPO}:Q8_0")


def test_model_names_are_split_into_repository_and_file() -> None:
    assert split_name("a/b:Q4_K_M") == ("a/b", "Q4_K_M")
    assert split_name("a/b:Q4/c-00001-of-00002.gguf") == ("a/b", "Q4/c-00001-of-00002.gguf")
    assert split_name("a/b") == ("a/b", None)
    assert split_name("C:\\models") == ("C:\\models", None)


def test_only_models_in_the_repository_are_chosen() -> None:
    names = (
        "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m.Q8_0.gguf", "mmproj-m-Q8_0.gguf", "../m-Q6_K.gguf",
        "/m-Q6_K.gguf", "a/../../m-Q6_K.gguf", "m-Q5_K-00002-of-00002.gguf", "m-Q8_0.gguf.sha256",
    )  # fmt: skip
    found = group_gguf_files(HubFile(name, 1, None, None) for name in names)
    assert list(found) == ["m-Q4_K_M", "m-Q4_K_S", "m.Q8_0"]
    for wanted, name in (("Q4_K_M", "m-Q4_K_M.gguf"), ("q8_0", "m.Q8_0.gguf")):
        assert [file.name for file in choose_files("a/b", found, wanted)] == [name]
    for wanted in ("Q4_K", "Q6_K", "Q5_K", ".", "m"):
        with pytest.raises(NotOnHub):
            choose_files("a/b", found, wanted)


def test_types_that_begin_alike_are_told_apart() -> None:
    names = (
        "m-Q6_K", "m-Q6_K_L", "m-UD-Q6_K_XL", "m-IQ2_M", "m-UD-IQ2_M", "m-Q2_K_L", "m-Q4_0_4_4",
    )  # fmt: skip
    found = group_gguf_files(HubFile(f"{name}.gguf", 1, None, None) for name in names)
    for wanted, name in (
        ("Q6_K", "m-Q6_K"), ("Q6_K_XL", "m-UD-Q6_K_XL"), ("IQ2_M", "m-IQ2_M"),
        ("UD-IQ2_M", "m-UD-IQ2_M"),
    ):  # fmt: skip
        assert [file.name for file in choose_files("a/b", found, wanted)] == [f"{name}.gguf"]
    for wanted in ("Q2_K", "Q4_0"):
        with pytest.raises(NotOnHub, match="has no GGUF models"):
            choose_files("a/b", found, wanted)


def test_the_parts_are_what_the_package_says(parts: dict[str, bytes]) -> None:
    """The splits of these tests are the same as those of gguf-split."""
    assert [name[-8:-5] for name in parts] == ["003"] * 3
    assert gguf.Keys.Split.LLM_KV_SPLIT_COUNT.encode() in next(iter(parts.values()))
