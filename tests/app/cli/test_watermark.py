"""`tokenglass watermark` counts the green tokens of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app import tale
from app.cli.errors import read_text
from app.cli.main import main
from gpu import Greenlists, ModelConfig, WatermarkConfig, detect_watermark
from gpu.text.tokenizer import Tokenizer

FOLDER = tale.model_dir()
TEXT = "Once upon a time there was a fox who lived in the wood and was quick and kind."


def look(file: Path, *args: str) -> Result:
    return CliRunner().invoke(main, ["watermark", str(file), "--model", str(FOLDER), *args])


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("scheme", ["lefthash", "selfhash"])
def test_the_numbers_are_those_of_the_detector(tmp_path: Path, scheme: str) -> None:
    options = ("--hashing-key", "7", "--greenlist-ratio", "0.5", "--seeding-scheme", scheme)
    result = look(write(tmp_path / "text", TEXT), *options)
    assert result.exit_code == 0, result.output
    config = WatermarkConfig(0.5, 7, scheme)  # type: ignore[arg-type]
    ids = Tokenizer.load(FOLDER).encode(TEXT, bos=False, specials=False)
    want = detect_watermark(ids, config, Greenlists(ModelConfig.from_folder(FOLDER).vocab_size))
    n, of = want.num_green_tokens, want.num_tokens_scored
    assert f"{n} of {of} tokens are green ({n / of:.1%}, by chance 50.0%)" in result.output
    assert f"z {want.z_score:.2f}, p {want.p_value:.2g}" in result.output
    assert "no watermark of this key" in result.output


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    """Windows writes one; the first line of a training would have it, too."""
    plain, marked = tmp_path / "plain", tmp_path / "marked"
    plain.write_text(TEXT, "utf-8")
    marked.write_text(TEXT, "utf-8-sig")
    assert look(plain).output == look(marked).output != ""
    assert read_text(marked) == TEXT


def test_a_green_text_has_the_watermark(tmp_path: Path) -> None:
    """Every word follows the token before from its greenlist."""
    tokenizer = Tokenizer.load(FOLDER)
    lists = Greenlists(ModelConfig.from_folder(FOLDER).vocab_size)
    text = "The"
    for _ in range(30):
        ids = tokenizer.encode(text, bos=False, specials=False)
        for word in (" the", " fox", " was", " and", " her", " in", " to", " so", " it", " of"):
            longer = tokenizer.encode(text + word, bos=False, specials=False)
            if longer[:-1] == ids and lists.is_green(WatermarkConfig(), longer):
                text += word
                break
    result = look(write(tmp_path / "text", text))
    assert result.output.splitlines()[-1] == "a watermark of this key"


@pytest.mark.parametrize(
    ("text", "options", "what"),
    [
        ("", (), "2 are the fewest"),
        (TEXT, ("--hashing-key", "0"), "hashing_key must be"),
        (TEXT, ("--greenlist-ratio", "1"), "greenlist_ratio must be"),
        (TEXT, ("--context-width", "0"), "--context-width"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, text: str, options: tuple[str, ...], what: str
) -> None:
    result = look(write(tmp_path / "text", text), *options)
    assert result.exit_code != 0
    assert what in result.output
