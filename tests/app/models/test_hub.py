"""Models of the hub, with the real client and a fake hub on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any
from unittest import mock

import huggingface_hub
import pytest
from click.testing import CliRunner
from huggingface_hub import constants
from huggingface_hub.cli import hf
from huggingface_hub.utils import close_session

from app import tale
from app.config import Settings
from app.engine import loading
from app.models import hub as hub_module
from app.models.cached import cached_models
from app.models.encoders import EncoderFolders
from app.models.find_model import Model, find_model
from app.models.free_memory import FreeMemory
from app.models.hub import is_hub_id, look_up
from app.models.hub_digests import checked_beside
from app.models.hub_errors import HubError, NotOnHub
from app.models.loras import find_loras
from app.models.model_source import ModelSource
from app.models.transfer import Cancelled, Transfer
from gpu import DeviceError, Inventory, ModelError
from tests.app.models.fake_hub import COMMIT, FakeHub, Repo

TALE = {path.name: path.read_bytes() for path in tale.model_dir().iterdir() if path.is_file()}
WEIGHTS = "model.safetensors"
SENTENCE_PIECE = Path(__file__).parents[2] / "gpu" / "text" / "sentence_piece"


def find(name: str = "some/tale", **settings: Any) -> Model:
    return find_model(Settings(model=name, **settings))


def config_with(**changes: Any) -> bytes:
    return json.dumps({**json.loads(TALE["config.json"]), **changes}).encode()


# ---- getting a model -------------------------------------------------------------------------


def test_a_model_is_fetched_and_is_the_same(hub: FakeHub) -> None:
    heard: list[Transfer] = []
    model = find()
    assert model.name == "some/tale"
    assert [file.name for file in model.missing] == [WEIGHTS]
    model.fetch(heard.append)
    assert Inventory.from_folder(model.path) == Inventory.from_folder(tale.model_dir())
    assert (model.path / WEIGHTS).read_bytes() == TALE[WEIGHTS]
    n_bytes = len(TALE[WEIGHTS])
    assert (heard[0].n_done, heard[-1].n_done) == (0, n_bytes)
    assert {(t.file, t.n_bytes, t.all_bytes) for t in heard} == {(WEIGHTS, n_bytes, n_bytes)}
    assert [t.share for t in heard] == sorted(t.share for t in heard)
    assert "downloading model.safetensors, 6." in str(heard[-1])


def test_weights_are_fetched_only_after_everything_else_was_checked(hub: FakeHub) -> None:
    find()
    asked = [a.path.rpartition("/")[2] for a in hub.asked if "/resolve/" in a.path]
    assert asked[0] == "config.json"
    ranges = [a.range for a in hub.fetched(WEIGHTS)]
    assert ranges
    assert all(ranges), "more than the header"


def test_cached_files_are_not_fetched_again(hub: FakeHub) -> None:
    find().fetch()
    hub.asked.clear()
    again = find()
    again.fetch()
    assert again.missing == ()
    assert [a.path for a in hub.asked if a.method == "GET"] == [
        "/api/models/some/tale/revision/main"
    ]


def test_only_what_a_model_needs_is_fetched_and_never_a_pickle(hub: FakeHub) -> None:
    extra = {
        "pytorch_model.bin": b"\x80\x04.",
        "training_args.bin": b"\x80",
        "run.py": b"import os",
    }
    hub.repos["some/tale"].files |= extra
    model = find()
    model.fetch()
    assert not {path.name for path in model.path.iterdir()} & set(extra)
    assert not any(a.path.endswith(tuple(extra)) for a in hub.asked)


def test_more_chat_templates_are_fetched(hub: FakeHub) -> None:
    files = hub.repos["some/tale"].files
    files["additional_chat_templates/default.jinja"] = b"one"
    files["additional_chat_templates/tool_use.jinja"] = b"two"
    files["additional_chat_templates/notes.txt"] = b"three"
    files["other/rag.jinja"] = b"four"
    tokenizer = find().tokenizer
    assert (tokenizer.chat_template, tokenizer.tool_template) == ("one", "two")
    assert not hub.fetched("notes.txt")
    assert not hub.fetched("rag.jinja")


def test_shards_are_those_that_the_index_names(hub: FakeHub, tmp_path: Path) -> None:
    files = hub.repos["some/tale"].files
    first, second = split(files.pop(WEIGHTS))
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    files |= dict(zip(names, (first[1], second[1]), strict=True))
    places = dict.fromkeys(first[0], names[0]) | dict.fromkeys(second[0], names[1])
    files["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    files["other.safetensors"] = TALE[WEIGHTS]
    model = find()
    assert [file.name for file in model.missing] == list(names)
    heard: list[Transfer] = []
    model.fetch(heard.append)
    total = len(first[1]) + len(second[1])
    assert heard[-1].all_done == heard[-1].all_bytes == total
    assert [t.all_done for t in heard] == sorted(t.all_done for t in heard)
    assert Inventory.from_folder(model.path) == Inventory.from_folder(tale.model_dir())
    assert not (model.path / "other.safetensors").exists()


@pytest.mark.parametrize(
    "place", ["../../../etc/passwd", "a/b.safetensors", "weights.bin", 7, None]
)
def test_an_index_cannot_name_anything_else(hub: FakeHub, place: Any) -> None:
    files = hub.repos["some/tale"].files
    del files[WEIGHTS]
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {"t": place}}).encode()
    with pytest.raises(ModelError, match="expected weight files named"):
        find()


def test_a_revision_is_pinned(hub: FakeHub) -> None:
    first = find(revision=COMMIT)
    first.fetch()
    hub.repos["some/tale"].commit = "f00d" + 36 * "0"
    hub.repos["some/tale"].files["config.json"] = config_with(max_position_embeddings=512)
    moved = find()
    assert moved.path != first.path
    hub.asked.clear()
    moved.fetch()
    assert (moved.path / WEIGHTS).read_bytes() == TALE[WEIGHTS]
    assert not hub.fetched(WEIGHTS), "the same bytes lay in the cache already"
    assert json.loads((first.path / "config.json").read_bytes()) == json.loads(TALE["config.json"])
    with pytest.raises(NotOnHub, match="no revision 'v2'"):
        find(revision="v2")


@pytest.mark.parametrize("revision", ["../main", "a..b", "", "/main", "-x", "a b"])
def test_a_revision_is_a_name_and_nothing_else(hub: FakeHub, revision: str) -> None:
    with pytest.raises(NotOnHub, match="must be a branch"):
        find(revision=revision)
    assert not hub.asked


# ---- which tokenizer ---------------------------------------------------------------------------


def test_a_tokenizer_of_sentencepiece_is_fetched_where_there_is_no_other(hub: FakeHub) -> None:
    files = hub.repos["some/tale"].files
    files["tokenizer.model"] = (SENTENCE_PIECE / "bpe.model").read_bytes()
    find()
    assert not hub.fetched("tokenizer.model")
    del files["tokenizer.json"]
    files["tokenizer_config.json"] = b"{}"
    files["added_tokens.json"] = b'{"<|im_end|>": 460}'
    hub.repos["some/tale"].commit = "b" * 40
    tokenizer = find().tokenizer
    assert tokenizer.special_tokens["bos_token"] == "<s>"
    assert tokenizer.encode("<|im_end|>", bos=False) == [460]
    assert not any(a.range is None for a in hub.fetched(WEIGHTS))


def test_a_repository_without_a_tokenizer_is_refused_before_its_weights(hub: FakeHub) -> None:
    del hub.repos["some/tale"].files["tokenizer.json"]
    with pytest.raises(ModelError, match=r"tokenizer\.json: not found, nor tokenizer\.model"):
        find()
    assert not hub.fetched(WEIGHTS)


# ---- refused before weights are fetched ------------------------------------------------------


def test_a_model_that_cannot_be_run_is_refused_by_its_config(hub: FakeHub) -> None:
    hub.repos["some/tale"].files["config.json"] = config_with(model_type="mamba2")
    with pytest.raises(ModelError, match=r"^some/tale: config.json: .*'mamba2'.*llama"):
        find()
    assert not hub.fetched(WEIGHTS)
    assert not hub.fetched("tokenizer.json")


def test_a_repository_without_safetensors(hub: FakeHub) -> None:
    files = hub.repos["some/tale"].files
    files["pytorch_model.bin"] = files.pop(WEIGHTS)
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor .*pytorch_model\.bin"):
        find()
    assert not hub.fetched("pytorch_model.bin")


def test_a_repository_that_is_no_model(hub: FakeHub) -> None:
    del hub.repos["some/tale"].files["config.json"]
    with pytest.raises(NotOnHub, match=r"has no config\.json"):
        find()


def test_a_model_that_does_not_fit_is_refused_before_its_weights(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.models.memory.UNCHECKED_BYTES", 0)
    monkeypatch.setattr(
        "app.models.memory.free_memory", lambda settings: FreeMemory(30_000_000, None, True)
    )
    with pytest.raises(DeviceError, match=r"some/tale at f32 needs .* With --kv-dtype q8 it would"):
        find(dtype="f32")
    assert all(a.range for a in hub.fetched(WEIGHTS))


# ---- who may -----------------------------------------------------------------------------------


def test_an_unknown_repository_is_refused(hub: FakeHub) -> None:
    with pytest.raises(
        NotOnHub, match="no folder 'some/other', and no model of that name on the hub"
    ):
        find("some/other")
    with pytest.raises(NotOnHub, match="no adapter of that name on the hub"):
        find_loras(("tone=some/other",))


def test_gated_without_and_with_a_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["some/tale"].token, hub.repos["some/tale"].gated = "hf_good", True
    with pytest.raises(NotOnHub, match=rf"gated: accept its terms at {hub.url}/some/tale"):
        find()
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    find().fetch()
    sent = {a.path[:5]: a.headers.get("authorization") for a in hub.asked}
    assert sent["/api/"] == "Bearer hf_good"
    assert sent["/cdn/"] is None, "the token went to another host"


def test_a_token_that_is_not_valid(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(NotOnHub, match=r"refused access to some/tale \(401\): the token"):
        find()


def test_a_config_or_tokenizer_that_is_too_large_is_not_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.models.hub.MAX_SMALL_BYTES", 100)
    with pytest.raises(NotOnHub, match=r"config\.json has [0-9,]+ bytes, but a config has at most"):
        find()
    monkeypatch.setattr("app.models.hub.MAX_SMALL_BYTES", len(TALE["config.json"]))
    with pytest.raises(ModelError, match=r"tokenizer\.json has [0-9,]+ bytes"):
        find()
    assert not hub.fetched("tokenizer.json")


@pytest.mark.parametrize(("status", "words"), [(500, "answered 500"), (429, "too many requests")])
def test_errors_of_the_hub_are_reported(hub: FakeHub, status: int, words: str) -> None:
    hub.faults.status = status
    with pytest.raises(HubError, match=words):
        find()


# ---- networks and disks --------------------------------------------------------------------------


def test_an_interrupted_download_is_resumed(hub: FakeHub) -> None:
    mib = 1 << 20
    model = find()
    hub.asked.clear()
    hub.faults.cut[WEIGHTS] = [mib + 1000, 3 * mib + 5]
    heard: list[Transfer] = []
    model.fetch(heard.append)
    assert (model.path / WEIGHTS).read_bytes() == TALE[WEIGHTS]
    assert [a.range for a in hub.fetched(WEIGHTS)] == [
        None,
        f"bytes={mib}-",
        f"bytes={3 * mib}-",
    ]
    assert heard[-1].n_done == len(TALE[WEIGHTS])


def test_a_download_cut_off_every_time_fails_and_leaves_no_partial_file(hub: FakeHub) -> None:
    model = find()
    hub.faults.cut[WEIGHTS] = 10 * [1_000_000]
    with pytest.raises(HubError, match=r"cannot be reached|could not be downloaded"):
        model.fetch()
    assert not (model.path / WEIGHTS).exists()
    assert not list(model.path.parent.parent.rglob("*.incomplete"))
    hub.faults.cut.clear()
    find().fetch()


def test_a_damaged_download_is_found_and_deleted(hub: FakeHub) -> None:
    model = find()
    hub.faults.damage.add(WEIGHTS)
    with pytest.raises(HubError, match=r"the download of model\.safetensors is damaged"):
        model.fetch()
    assert not (model.path / WEIGHTS).exists()
    hub.faults.damage.clear()
    find().fetch()
    assert (model.path / WEIGHTS).read_bytes() == TALE[WEIGHTS]


def test_a_damaged_small_file_is_found_too(hub: FakeHub) -> None:
    hub.faults.damage.add("tokenizer.json")
    with pytest.raises(HubError, match=r"tokenizer\.json is damaged"):
        find()
    hub.faults.damage = {"config.json"}
    shutil.rmtree(constants.HF_HUB_CACHE)
    with pytest.raises(HubError, match=r"config\.json is damaged"):
        find()


# ---- a disk that flips bits ----------------------------------------------------------------------


def flip(path: Path) -> None:
    """Change a bit in the middle of the blob that `path` links to; size and time stay."""
    blob = path.resolve()
    stat, data = blob.stat(), bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    os.utime(blob, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def command_for(name: str) -> str:
    return f"hf download some/tale {name} --revision {COMMIT} --force-download$"


def test_a_bit_of_the_weights_that_flipped_is_found_beside_their_loading(hub: FakeHub) -> None:
    model, read = find(), []
    model.fetch()
    with checked_beside([model.path, tale.model_dir()]):
        read.append(1)
    flip(model.path / WEIGHTS)
    assert find().missing == (), "size and time are those of before"
    with (
        pytest.raises(ModelError, match=rf"{WEIGHTS} is damaged .*{command_for(WEIGHTS)}"),
        checked_beside([model.path]),
    ):
        read.append(2)
    assert read == [1, 2]
    with pytest.raises(ModelError, match="is damaged on the disk"), checked_beside([model.path]):
        raise ModelError("what a reader thinks of it")
    with pytest.raises(Cancelled), checked_beside([model.path]):
        raise Cancelled


def test_the_command_of_the_message_brings_the_file_again(hub: FakeHub) -> None:
    model = find()
    model.fetch()
    flip(model.path / WEIGHTS)
    with pytest.raises(ModelError) as caught, checked_beside([model.path]):
        pass
    command = str(caught.value).partition("with: hf ")[2].split()
    assert CliRunner().invoke(hf.app, command).exit_code == 0
    with checked_beside([find().path]):
        pass
    assert (model.path / WEIGHTS).read_bytes() == TALE[WEIGHTS]


def test_an_engine_of_damaged_weights_is_closed(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = mock.Mock()
    monkeypatch.setattr(loading.Engine, "load", lambda *_, **__: engine)
    model = find()
    model.fetch()
    settings = Settings(model="some/tale")
    assert loading.load_engine(settings, model.source, lambda *_: None) is engine
    assert not engine.close.called
    flip(model.path / WEIGHTS)
    with pytest.raises(ModelError, match="is damaged on the disk"):
        loading.load_engine(settings, model.source, lambda *_: None)
    assert engine.close.call_count == 1
    bundled, folders = ModelSource(tale.model_dir()), EncoderFolders(embedding=model.path)
    with pytest.raises(ModelError, match="is damaged on the disk"):
        loading.load_engine(settings, bundled, lambda *_: None, encoders=folders)
    assert engine.close.call_count == 2


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_bit_of_a_small_file_that_flipped_is_found_before_it_is_read(
    hub: FakeHub, name: str
) -> None:
    flip(find().path / name)
    with pytest.raises(ModelError, match=rf"{name} is damaged on the disk.*{command_for(name)}"):
        find()


def test_a_config_that_was_half_written_is_downloaded_again(hub: FakeHub) -> None:
    config = find().path / "config.json"
    config.resolve().write_bytes(TALE["config.json"][:100])
    with pytest.raises(HubError, match="the file was deleted, try again"):
        find()
    assert find().path == config.parent


def test_shards_and_the_parts_of_a_gguf_model_are_checked(hub: FakeHub, tmp_path: Path) -> None:
    files = hub.repos["some/tale"].files
    first, second = split(files.pop(WEIGHTS))
    names = ("one.safetensors", "two.safetensors")
    files |= dict(zip(names, (first[1], second[1]), strict=True))
    places = dict.fromkeys(first[0], names[0]) | dict.fromkeys(second[0], names[1])
    files["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    parts = [f"tale-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.repos["some/gguf"] = Repo({part: part.encode() for part in parts}, "a" * 40)
    model = find()
    model.fetch()
    flip(model.path / names[1])
    with (
        pytest.raises(ModelError, match=r"two\.safetensors is damaged"),
        checked_beside([model.path]),
    ):
        pass
    snapshot = look_up("some/gguf")
    assert snapshot.files is not None
    snapshot.fetch(tuple(snapshot.files.values()))
    flip(snapshot.folder / parts[1])
    with (
        pytest.raises(ModelError, match=rf"{parts[1]} is damaged"),
        checked_beside([snapshot.folder / parts[0]]),
    ):
        pass


def test_an_adapter_is_checked(hub: FakeHub) -> None:
    hub.repos["some/tone"] = Repo(
        {"adapter_config.json": b"{}", "adapter_model.safetensors": b"numbers"}, "b" * 40
    )
    folder = find_loras(("tone=some/tone",))["tone"]
    flip(folder / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors is damaged on the disk"):
        find_loras(("tone=some/tone",))


def test_a_download_can_be_cancelled(hub: FakeHub) -> None:
    model = find()
    heard: list[Transfer] = []
    hub.faults.cut[WEIGHTS] = [3 << 20]  # so that it is cancelled in the middle
    with pytest.raises(Cancelled):
        model.fetch(heard.append, cancelled=lambda: heard != [] and hub.faults.cut[WEIGHTS] == [])
    assert heard[-1].n_done < len(TALE[WEIGHTS])
    assert not (model.path / WEIGHTS).exists()
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))


def test_offline_with_and_without_a_cache(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    with pytest.raises(HubError, match=r"some/tale \(main\) is not in the cache.*HF_HUB_OFFLINE"):
        find()
    assert not hub.asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    close_session()
    find()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="only part of some/tale is in the cache"):
        find()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    find().fetch()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    model = find()
    model.fetch()
    assert (model.path / WEIGHTS).read_bytes() == TALE[WEIGHTS]
    assert not hub.asked


def test_without_a_network_what_is_cached_is_used(hub: FakeHub) -> None:
    find().fetch()
    hub.close()
    close_session()
    assert find().missing == ()
    with pytest.raises(HubError, match=r"cannot be reached .*check the network"):
        find("some/other")


def test_a_full_disk_is_said_before_anything_is_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = find()
    hub.asked.clear()
    usage = namedtuple("usage", "total used free")(1, 1, 65 << 20)
    monkeypatch.setattr(hub_module.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(HubError, match=r"needs 0\.01 GB, but the disk .* 0\.07 GB free"):
        model.fetch()
    assert not hub.asked


def test_a_disk_that_fills_up_meanwhile(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    model = find()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(HubError, match=r"the disk of the cache .* is full"):
        model.fetch()


# ---- names, lists, the command line ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "yes"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("a/b", True),
        ("folder", False),
        ("./a/b", False),
        ("/a/b", False),
        ("a/b/c", False),
        ("../b", False),
        ("a/..", False),
        ("a/b--c", False),
        ("a/b\n", False),
        ("~/b", False),
        ("a/b?c", False),
        ("", False),
    ],
)
def test_hub_ids(name: str, yes: bool) -> None:
    assert is_hub_id(name) is yes


def test_a_folder_takes_precedence_over_the_hub(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(tale.model_dir(), tmp_path / "some" / "tale")
    monkeypatch.chdir(tmp_path)
    assert find().path == Path("some/tale")
    assert not hub.asked
    with pytest.raises(ModelError, match="--revision applies to a model of the hub"):
        find(revision="main")
    with pytest.raises(
        ModelError, match=r"no folder or file 'nothing'; expected a path, a name .*, or OWNER/MODEL"
    ):
        find("nothing")


def test_the_cache_is_listed(hub: FakeHub) -> None:
    assert cached_models() == []
    look_up("some/tale")
    assert cached_models() == []
    find().fetch()
    ((name, n_bytes),) = cached_models()
    assert name == "some/tale"
    assert n_bytes > len(TALE[WEIGHTS])


def test_files_that_go_while_the_cache_is_read_are_left_out(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that a download moves: the models beside them stay on the list."""
    find().fetch()
    ((_, n_bytes),) = cached_models()
    walk = os.walk

    def moving(folder: Path) -> Any:
        for parent, folders, names in walk(folder):
            Path(parent, "config.json").unlink(missing_ok=True)
            yield parent, folders, names

    monkeypatch.setattr(os, "walk", moving)
    assert cached_models() == [("some/tale", n_bytes - len(TALE["config.json"]))]


def test_the_command_line_takes_a_name_of_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "app", "weights", "some/tale"],
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "model.embed_tokens.weight" in done.stdout
    assert "downloading model.safetensors" in done.stderr
    hub.repos["some/tale"].files["config.json"] = config_with(model_type="mamba2")
    hub.repos["some/tale"].commit = "f00d" + 36 * "0"
    done = subprocess.run(
        [sys.executable, "-m", "app", "run", "some/tale", "--port", "0"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "Error: some/tale: config.json: model_type 'mamba2'" in done.stderr.splitlines()[-1]
    assert "HTTP Request" not in done.stderr


def split(data: bytes) -> tuple[tuple[list[str], bytes], tuple[list[str], bytes]]:
    """Split a safetensors file in two; return the files and the index."""
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    names = sorted(header, key=lambda name: header[name]["data_offsets"])
    body = data[8 + n :]
    halves = []
    for part in (names[: len(names) // 2], names[len(names) // 2 :]):
        at, entries, pieces = 0, {}, []
        for name in part:
            begin, end = header[name]["data_offsets"]
            entries[name] = {**header[name], "data_offsets": [at, at + end - begin]}
            pieces.append(body[begin:end])
            at += end - begin
        encoded = json.dumps(entries).encode()
        halves.append((part, len(encoded).to_bytes(8, "little") + encoded + b"".join(pieces)))
    return halves[0], halves[1]
