"""`tokenglass export` writes a complete folder or none, goes on where it was interrupted, and never
replaces a folder that is no export."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from app.cli.main import main
from app.config import Settings
from app.local.model_files import MANIFEST
from app.models.find_model import find_model
from app.site import export as exporting
from app.site.export import export
from app.tale import model_dir
from gpu import Inventory, ModelError, Tokenizer
from gpu.export import weight_pieces
from tests.gpu.gguf import gguf_models
from tests.gpu.lora import random_loras

DTYPE = "q8"


def exported(out: Path, context: int = 64, **settings: Any) -> Path:
    """Export the bundled model; with a short context there are fewer plans to record."""
    chosen = Settings(model="tale", dtype=DTYPE, context=context, **settings)
    return export(chosen, find_model(chosen), out).folder


@pytest.fixture(scope="module")
def tale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("exports") / "tale")


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_manifest_names_every_file(tale: Path) -> None:
    manifest = json.loads((tale / MANIFEST).read_text())
    assert (manifest["format"], manifest["version"]) == ("tokenglass-export", 1)
    model, there = manifest["model"], files_of(tale)
    pieces = [*model["plans"].values(), *model["weights"]["pieces"], *manifest["files"].values()]
    for piece in [*pieces, manifest["inventory"]]:
        data = there.pop(piece["file"])
        assert len(data) == piece["bytes"]
        assert hashlib.sha256(data).hexdigest() == piece["sha256"]
    rest = {name for name in there if not name.startswith("static/")}
    assert rest == {MANIFEST, "index.html"}
    assert manifest["chat"]["chat_template"]
    assert not list(tale.parent.glob(".*"))


def test_files_of_the_model_are_its_own(tale: Path) -> None:
    name = "tokenizer.json"
    assert (tale / "model" / name).read_bytes() == (model_dir() / name).read_bytes()


def test_the_list_of_tensors_is_the_models(tale: Path) -> None:
    named = json.loads((tale / MANIFEST).read_text())["inventory"]["file"]
    inventory = msgspec.json.decode((tale / named).read_bytes(), type=Inventory)
    assert inventory == Inventory.from_folder(model_dir(), DTYPE)


def test_no_folder_but_an_export_is_replaced(tale: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("three years of work")
    for content in (None, "{}", "no JSON"):
        if content is not None:
            (folder / MANIFEST).write_text(content)
        with pytest.raises(ModelError, match="is no export"):
            exported(folder)
    assert (folder / "thesis.txt").read_text() == "three years of work"
    with pytest.raises(ModelError, match="is no export"):
        exported(folder / "thesis.txt")
    with pytest.raises(ModelError, match="make this folder first"):
        exported(tmp_path / "nowhere" / "deep")


@pytest.mark.slow
def test_an_older_export_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    exported(out)
    (out / "leftover").write_text("")
    exported(out, context=48)
    assert "leftover" not in files_of(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_an_interrupted_export_goes_on(
    tale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small pieces, of which the first attempt writes some: the second keeps them, and the
    folder has the same weights."""
    monkeypatch.setattr(weight_pieces, "PIECE_BYTES", 300_000)
    out, ended = tmp_path / "out", weight_pieces.PieceWriter._end_piece

    def fail_at_the_third(writer: Any) -> None:
        if writer._at >= 900_000:
            raise OSError(28, "No space left on device")
        ended(writer)

    with monkeypatch.context() as full:
        full.setattr(weight_pieces.PieceWriter, "_end_piece", fail_at_the_third)
        with pytest.raises(ModelError, match="No space left"):
            exported(out)
    assert not out.exists()
    (partial,) = tmp_path.iterdir()
    kept = {path.name: path.stat().st_mtime_ns for path in (partial / "weights").glob("*.bin")}
    assert sorted(kept) == ["0000.bin", "0001.bin"]
    exported(out)
    for name, written in kept.items():
        assert (out / "weights" / name).stat().st_mtime_ns == written
    whole = b"".join(path.read_bytes() for path in sorted((out / "weights").iterdir()))
    assert whole == (tale / "weights" / "0000.bin").read_bytes()


@pytest.mark.slow
def test_what_another_export_left_is_not_used(tale: Path, tmp_path: Path) -> None:
    """A whole piece, of the right size."""
    whole = (tale / "weights" / "0000.bin").read_bytes()
    partial = tmp_path / ".out.partial"
    (partial / "weights").mkdir(parents=True)
    (partial / exporting.INPUTS).write_text('{"sha256":"of something else"}')
    (partial / "weights" / "0000.bin").write_bytes(bytes(len(whole)))
    assert (exported(tmp_path / "out") / "weights" / "0000.bin").read_bytes() == whole


def test_the_tokenizer_of_a_gguf_file_is_written(tmp_path: Path) -> None:
    """As the tokenizer.json that the page reads: it encodes as the file's own does."""
    path = gguf_models.write(model_dir(), tmp_path / "tale.gguf", "Q4_1")
    settings = Settings(model=str(path), context=64)
    model = find_model(settings)
    site = export(settings, model, tmp_path / "site")
    assert site.manifest.model.dtype == "q4"
    assert set(site.manifest.files) == {"tokenizer.json"}
    written = Tokenizer.load(site.folder / site.manifest.files["tokenizer.json"].file)
    for text in ("Once upon a time, 7 foxes", "<|im_start|>user\nhi", " naïve 🦊\n"):
        for bos in (False, True):
            assert written.encode(text, bos) == model.tokenizer.encode(text, bos)
    assert written.decode(written.encode("A fox")) == "A fox"
    assert site.manifest.chat.chat_template == model.tokenizer.chat_template is not None


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model = find_model(Settings(model="tale"))
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        export(Settings(), type(model)("m", folder, model.tokenizer, model.dtype), tmp_path / "out")


@pytest.mark.parametrize("loras", [(), pytest.param(("tone",), marks=pytest.mark.slow)])
def test_the_command_says_what_it_wrote(tmp_path: Path, loras: tuple[str, ...]) -> None:
    adapter = random_loras.of_model(model_dir(), "all")
    options = [option for name in loras for option in ("--lora", f"{name}={adapter}")]
    arguments = ["export", str(tmp_path / "out"), "--dtype", "q4", "--context", "64", *options]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "tale-3m as q4: " in result.output
    assert "plans for portable devices" in result.output
    assert f"http.server 8080 --directory {tmp_path / 'out'}" in result.output
    assert ("LoRA adapters: tone" in result.output) == bool(loras)


def test_the_command_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    foreign = random_loras.folder("qwen2", "all")
    for arguments, reason in (
        ([str(tmp_path / "out"), "--lora", f"tone={foreign}"], "LoRA adapter 'tone'"),
        ([str(tmp_path / "a" / "b")], "make this folder first"),
    ):
        result = CliRunner().invoke(main, ["export", *arguments])
        assert result.exit_code == 2
        assert reason in result.output
