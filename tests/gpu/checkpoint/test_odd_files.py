"""Model folders with files that are not regular files, or with enormous headers: refused quickly,
with a clear message."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.safetensors_files import MAX_HEADER_BYTES, MAX_INDEXED, MAX_TENSORS
from gpu.config import GenerationDefaults, ModelConfig
from gpu.errors import ModelError
from gpu.files.json_object import MAX_BYTES
from gpu.files.regular_file import read_regular
from gpu.gguf.file import open_gguf
from gpu.gguf.header import MAX_ENTRIES, MAX_STRINGS
from gpu.text.tokenizer import Tokenizer

MODEL = Path(__file__).parents[3] / "app" / "tale" / "model"
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "model.safetensors",
)


def read_all(folder: Path) -> None:
    """Read a folder as the server and the engine do."""
    ModelConfig.from_folder(folder)
    GenerationDefaults.from_folder(folder)
    Tokenizer.load(folder)
    Checkpoint.open(folder)


def refused(read: Callable[[], object], seconds: float = 20) -> str:
    """Return the message of the ModelError. Runs on a thread, because a file that is not refused
    blocks for ever."""
    errors: list[BaseException | None] = []

    def run() -> None:
        try:
            read()
        except BaseException as error:
            errors.append(error)
        else:
            errors.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert errors, "it is still reading"
    assert isinstance(errors[0], ModelError), errors[0]
    return str(errors[0])


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def listening(path: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)  # the path of a socket has 107 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)
        os.close(here)


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (pipe, "it is a pipe; expected a regular file"),
    "endless": (endless, "it is a device; expected a regular file"),
    "loop": (loop, "symbolic links"),
    "socket": (listening, "it is a socket; expected a regular file"),
    "folder": (Path.mkdir, "it is a folder; expected a regular file"),
}

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The bundled model, in its own folder."""
    shutil.copytree(MODEL, tmp_path / "model")
    read_all(tmp_path / "model")
    return tmp_path / "model"


@posix
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", FILES)
def test_irregular_files_are_refused(folder: Path, name: str, odd: str) -> None:
    make, words = ODD[odd]
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    message = refused(lambda: read_all(folder))
    assert message.startswith(f"{folder / name}: ")
    assert words in message


@posix
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["model.safetensors.index.json", "one.safetensors"])
def test_irregular_shards_and_indexes_are_refused(folder: Path, name: str, odd: str) -> None:
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "one.safetensors"}}))
    (folder / name).unlink(missing_ok=True)
    make, words = ODD[odd]
    make(folder / name)
    message = refused(lambda: read_all(folder))
    assert message.startswith(f"{folder / name}: ")
    assert words in message


@posix
@pytest.mark.parametrize("odd", sorted(ODD.keys() - {"folder"}))
def test_an_irregular_gguf_file_is_refused(tmp_path: Path, odd: str) -> None:
    make, words = ODD[odd]
    make(tmp_path / "m.gguf")
    assert words in refused(lambda: read_all(tmp_path / "m.gguf"))


@posix
def test_a_file_replaced_by_a_pipe_while_opening_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regular = tmp_path / "regular"
    regular.write_text("{}")
    pipe(tmp_path / "pipe")
    found = regular.stat()
    monkeypatch.setattr(Path, "stat", lambda self, **_: found)
    assert "it is a pipe" in refused(lambda: read_regular(tmp_path / "pipe", 100))


def test_the_links_of_the_hubs_cache_are_accepted(folder: Path) -> None:
    blobs, snapshot = folder.parent / "blobs", folder.parent / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for n, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / str(n))
        (snapshot / path.name).symlink_to(f"../../blobs/{n}")
    read_all(snapshot)


def test_links_inside_the_folder_are_accepted(folder: Path) -> None:
    path = folder / "config.json"
    path.rename(folder / "config-2.json")
    path.symlink_to("config-2.json")
    read_all(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_links_that_leave_the_folder_are_refused(folder: Path, name: str) -> None:
    there, path = folder.parent / "private", folder / name
    if path.exists():
        path.rename(there)
    else:
        there.write_text("a private key")
    path.symlink_to(there)
    with pytest.raises(ModelError, match=rf"{name}: is a link to .*private, outside of its folder"):
        read_all(folder)


def test_blobs_that_are_a_link_are_no_cache(folder: Path) -> None:
    snapshot = folder.parent / "snapshots" / "abc"
    snapshot.parent.mkdir()
    folder.rename(snapshot)
    elsewhere = snapshot.parents[1] / "elsewhere"
    elsewhere.mkdir()
    (snapshot.parents[1] / "blobs").symlink_to(elsewhere)
    (snapshot / "config.json").rename(elsewhere / "1")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    with pytest.raises(ModelError, match="outside of its folder"):
        read_all(snapshot)


@pytest.mark.parametrize("cache", ["hub", "other"])
def test_blobs_that_repositories_share_are_of_the_hubs_cache_alone(
    folder: Path, cache: str
) -> None:
    """huggingface_hub 2.4 keeps the blobs of Xet once for all repositories."""
    owner = folder.parent / {"hub": "models--some--tale", "other": "some-tale"}[cache]
    snapshot, blobs, shared = owner / "snapshots" / "abc", owner / "blobs", folder.parent / "blobs"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    blobs.mkdir()
    (shared / "ab").mkdir(parents=True)
    (snapshot / "config.json").rename(shared / "ab" / "abcd")
    (blobs / "1234").symlink_to("../../blobs/ab/abcd")
    (snapshot / "config.json").symlink_to("../../blobs/1234")
    if cache == "hub":
        read_all(snapshot)
    else:
        with pytest.raises(ModelError, match="outside of its folder"):
            read_all(snapshot)


# ---- enormous headers ------------------------------------------------------------------------


def write_header(path: Path, text: bytes, n_bytes: int) -> None:
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + n_bytes)


def many(n: int, name: str = "{}") -> bytes:
    entries = (
        f'"{name.format(i)}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{i + 1}]}}'
        for i in range(n)
    )
    return b"{" + ",".join(entries).encode() + b"}"


def measured(read: Callable[[], object]) -> tuple[float, int]:
    """Run `function` and return its seconds and the peak memory of Python objects."""
    began = time.process_time()
    read()
    seconds = time.process_time() - began
    tracemalloc.start()
    try:
        read()
        return seconds, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_header_of_300_000_tensors_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_header(path, many(300_000), 300_000)

    def read() -> None:
        with pytest.raises(
            ModelError, match=r"header says it has \d+ bytes; at most 16777216 are supported"
        ):
            Checkpoint.open(tmp_path)

    seconds, n_bytes = measured(read)
    assert seconds < 1
    assert n_bytes < 1 << 20


def test_too_many_tensors_are_counted_before_they_are_parsed(tmp_path: Path) -> None:
    write_header(tmp_path / "model.safetensors", many(MAX_TENSORS + 1), MAX_TENSORS + 1)

    def read() -> None:
        with pytest.raises(ModelError, match="header has 65537 tensors; at most 65536"):
            Checkpoint.open(tmp_path)

    seconds, n_bytes = measured(read)
    assert seconds < 1
    assert n_bytes < 2 * MAX_HEADER_BYTES


@pytest.mark.parametrize("part", [b"{}", b"[]", b'{"":[]}'])
def test_a_header_of_empty_objects_is_refused_before_parsing(tmp_path: Path, part: bytes) -> None:
    text = b'{"a":[' + b",".join([part] * ((MAX_HEADER_BYTES - 100) // (len(part) + 1))) + b"]}"
    write_header(tmp_path / "model.safetensors", text, 0)

    def read() -> None:
        with pytest.raises(ModelError, match=r"objects and lists; at most 262144"):
            Checkpoint.open(tmp_path)

    seconds, n_bytes = measured(read)
    assert seconds < 1
    assert n_bytes < 2 * MAX_HEADER_BYTES


@pytest.mark.slow
def test_the_most_tensors_allowed_are_read_quickly(tmp_path: Path) -> None:
    write_header(tmp_path / "model.safetensors", many(MAX_TENSORS), MAX_TENSORS)
    seconds, n_bytes = measured(lambda: Checkpoint.open(tmp_path))
    assert seconds < 5
    assert n_bytes < 200 << 20
    assert len(Checkpoint.open(tmp_path).names()) == MAX_TENSORS


def test_an_index_of_too_many_tensors_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    names = ",".join(f'"{i}":"a.safetensors"' for i in range(MAX_INDEXED + 1))
    index.write_text(f'{{"weight_map":{{{names}}}}}')
    with pytest.raises(ModelError, match=f"names {MAX_INDEXED + 1} tensors; at most {MAX_INDEXED}"):
        Checkpoint.open(tmp_path)


def test_a_config_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    tracemalloc.start()
    with pytest.raises(
        ModelError, match=f"has {MAX_BYTES + 1} bytes; expected at most {MAX_BYTES}"
    ):
        ModelConfig.from_folder(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def strings(key: str, n: int) -> bytes:
    return string(key) + struct.pack("<IIQ", 9, 8, n) + bytes(8) * n


def gguf(path: Path, n_tensors: int, values: list[bytes]) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, len(values)) + b"".join(values)
    infos = (string(str(i)) + struct.pack("<IQIQ", 1, 32, 0, 128 * i) for i in range(n_tensors))
    with path.open("wb") as file:
        file.write(head + b"".join(infos))
        file.truncate(file.tell() + 31 + 128 * n_tensors)
    return path


@pytest.mark.parametrize("n_arrays", [1, 8])
def test_more_strings_than_any_tokenizer_has_are_refused(tmp_path: Path, n_arrays: int) -> None:
    n = MAX_STRINGS // n_arrays + 1
    path = gguf(tmp_path / "m.gguf", 0, [strings(f"a{i}", n) for i in range(n_arrays)])
    with pytest.raises(ModelError, match=f"at most {MAX_STRINGS} are supported"):
        open_gguf(path)


def test_more_gguf_tensors_than_any_model_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="at most 65536 of each are supported"):
        open_gguf(gguf(tmp_path / "m.gguf", MAX_ENTRIES + 1, []))


def test_the_largest_gguf_header_is_read_quickly(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", MAX_ENTRIES, [strings("tokens", 780_000)])
    began = time.process_time()
    file = open_gguf(path)
    assert time.process_time() - began < 8
    assert (len(file.tensors), len(file.values["tokens"])) == (MAX_ENTRIES, 780_000)
