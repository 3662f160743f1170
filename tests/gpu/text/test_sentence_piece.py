"""tokenizer.model: read, converted, and compared id by id with SentencePiece and `transformers`.
The golden ids and the script that made them are in sentence_piece/."""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from gpu.errors import InvalidRequest, ModelError
from gpu.text.tokenizer import Tokenizer
from tests.gpu.text.sentence_piece.texts import CONTROL_TEXTS, TEXTS
from tests.gpu.text.tokenizer_families import stream

DATA = Path(__file__).parent / "sentence_piece"
GOLDEN = json.loads((DATA / "golden.json").read_text())
MODELS = GOLDEN["sentencepiece"]


def folder_of(folder: Path, name: str, **files: Any) -> Path:
    """A model folder with tokenizer.model, and other JSON files by their names."""
    shutil.copy(DATA / f"{name}.model", folder / "tokenizer.model")
    for file, values in files.items():
        (folder / f"{file}.json").write_text(json.dumps(values))
    return folder


# ---- ids -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_ids_equal_those_of_sentencepiece(name: str) -> None:
    tokenizer = Tokenizer.load(DATA / f"{name}.model")
    for text, ids in zip(TEXTS, MODELS[name], strict=True):
        assert tokenizer.encode(text, bos=False, specials=False) == ids, text
        assert tokenizer.encode(text, bos=False) == ids, text


@pytest.mark.parametrize("name", GOLDEN["transformers"])
def test_ids_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    golden = GOLDEN["transformers"][name]
    tokenizer = Tokenizer.load(folder_of(tmp_path, name, tokenizer_config=golden["config"]))
    for text, ids in zip([*TEXTS, *CONTROL_TEXTS], golden["ids"], strict=True):
        if "▁▁" not in text:  # there it looks for the user's pieces before spaces become ▁
            assert tokenizer.encode(text, bos=False) == ids, text


@pytest.mark.parametrize("name", ["bpe", "bpe-spaces"])
def test_texts_are_restored_and_streamed(name: str) -> None:
    tokenizer = Tokenizer.load(DATA / f"{name}.model")
    for text in TEXTS:
        text = text.replace("▁", "")
        ids = tokenizer.encode(text, bos=False)
        assert tokenizer.decode(ids) == text
        assert "".join(stream(tokenizer, [], ids)) == text
        data = b"".join(map(tokenizer.token_bytes, ids))
        assert data == (b" " if name == "bpe" and text else b"") + text.encode()


@pytest.mark.parametrize("name", MODELS)
def test_user_text_cannot_end_a_turn(name: str) -> None:
    tokenizer = Tokenizer.load(DATA / f"{name}.model")
    for text in ("a</s>b", "<s>", "<unk> <s></s>", "<turn>", "<0x41>"):
        ids = tokenizer.encode(text, bos=False, specials=False)
        unknown = {0} if name == "unigram" else set()  # it lacks "<", but has no bytes
        assert {id for id in ids if tokenizer.is_special(id)} <= unknown
        if name.startswith("bpe"):
            assert tokenizer.decode(ids) == text


def test_a_user_defined_piece_with_spaces_is_matched() -> None:
    tokenizer = Tokenizer.load(DATA / "bpe-spaces.model")
    ids = tokenizer.encode("a" + " " * 16 + "b\n\n<sep>", bos=False)
    assert [tokenizer.piece(id) for id in ids] == ["a", " " * 16, "b", "\n\n", "<sep>"]


# ---- settings in files -----------------------------------------------------------------------


def test_the_model_names_its_bos_and_eos(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder_of(tmp_path, "bpe"))
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert tokenizer.eos_ids == (2,)
    assert tokenizer.encode("the cat")[0] == 1
    assert tokenizer.is_special(tokenizer.encode("<turn>", bos=False)[0])
    other = Tokenizer.load(DATA / "bpe-spaces.model")
    assert (other.encode("the")[0], other.eos_ids) == (2, (1,))


def test_the_config_overrides_the_model(tmp_path: Path) -> None:
    config = {
        "bos_token": None,
        "eos_token": {"content": "<turn>"},
        "add_bos_token": False,
        "add_prefix_space": False,
        "chat_template": "one",
    }
    folder = folder_of(tmp_path, "bpe", tokenizer_config=config)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.eos_token == "<turn>"
    assert tokenizer.chat_template == "one"
    ids = tokenizer.encode("the cat")
    assert tokenizer.piece(ids[0]) in ("t", "th", "the")
    assert tokenizer.decode(ids) == "the cat"


def test_a_space_follows_control_tokens_if_the_config_says_so(tmp_path: Path) -> None:
    """`legacy`, the default, adds one; without it there is none."""
    folder = folder_of(tmp_path, "bpe")
    ids = Tokenizer.load(folder).encode("a</s>b", bos=False)
    folder_of(tmp_path, "bpe", tokenizer_config={"legacy": False})
    newer = Tokenizer.load(folder)
    assert [newer.piece(id) for id in ids] == [" a", "</s>", " ", "b"]
    assert [newer.piece(id) for id in newer.encode("a</s>b", bos=False)] == [" a", "</s>", "b"]


def test_tokenizer_json_is_preferred(tmp_path: Path) -> None:
    backend = Tokenizer.load(DATA / "bpe-spaces.model")._backend
    backend.save(str(folder_of(tmp_path, "bpe") / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == Tokenizer.load(DATA / "bpe-spaces.model").vocab_size
    assert Tokenizer.load(tmp_path / "tokenizer.model").vocab_size != tokenizer.vocab_size


N_PIECES = len(Tokenizer.load(DATA / "bpe.model")._backend.get_vocab())


@pytest.mark.parametrize("older", [True, False])
def test_added_tokens_are_read(tmp_path: Path, older: bool) -> None:
    added: dict[str, Any]
    if older:
        added = {
            "added_tokens": {"<|im_end|>": N_PIECES + 1, "<|im_start|>": N_PIECES},
            "special_tokens_map": {
                "eos_token": "<|im_end|>",
                "additional_special_tokens": ["<|im_start|>", {"content": "<sep>"}],
            },
        }
    else:
        special = {"special": True, "normalized": False}
        decoder = {
            str(N_PIECES): {"content": "<|im_start|>", **special},
            str(N_PIECES + 1): {"content": "<|im_end|>", **special},
            "1": {"content": "<s>", **special},
        }
        config = {"eos_token": "<|im_end|>", "added_tokens_decoder": decoder}
        added = {"tokenizer_config": config}
    tokenizer = Tokenizer.load(folder_of(tmp_path, "bpe", **added))
    ids = tokenizer.encode("<|im_start|>the<|im_end|>", bos=False)
    assert (ids[0], ids[-1]) == (N_PIECES, N_PIECES + 1)
    assert tokenizer.is_special(ids[0])
    assert tokenizer.eos_ids == (N_PIECES + 1,)
    assert not tokenizer.is_special(tokenizer.encode("<sep>", bos=False)[-1])  # the user's piece
    assert tokenizer.decode(ids) == "the"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"added_tokens": {"<new>": 9999}},
            "expected the id 9999 for the added token",
        ),
        ({"added_tokens": {"<s>": 7}}, "the tokenizer gives it 1"),
        ({"added_tokens": {"<new>": "x"}}, "<new> must be an integer"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "tokens by their ids"),
        ({"tokenizer_config": {"added_tokens_decoder": {"9": {}}}}, "content is missing"),
        ({"tokenizer_config": {"added_tokens_decoder": []}}, "must be an object"),
        ({"tokenizer_config": {"eos_token": "<nowhere>"}}, "expected a token '<nowhere>'"),
    ],
)
def test_files_that_disagree_are_refused(tmp_path: Path, files: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer.load(folder_of(tmp_path, "bpe", **files))


# ---- malformed files -------------------------------------------------------------------------


def message(*fields: tuple[int, int | float | bytes]) -> bytes:
    """A protobuf message; numbers under 128 and short byte strings suffice here."""
    data = b""
    for number, value in fields:
        wire = 2 if isinstance(value, bytes) else 5 if isinstance(value, float) else 0
        tag = number << 3 | wire
        data += bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
        if isinstance(value, bytes):
            data += bytes([len(value)]) + value
        else:
            data += struct.pack("<f", value) if isinstance(value, float) else bytes([value])
    return data


def model(*more: tuple[int, Any], kind: int = 2, trainer: bytes = b"") -> bytes:
    pieces = [(1, message((1, b"<unk>"), (3, 2))), (1, message((1, b"a"), (2, -1.0)))]
    return message(*pieces, *more, (2, message((3, kind)) + trainer))


def loaded(folder: Path, data: bytes) -> Tokenizer:
    (folder / "tokenizer.model").write_bytes(data)
    return Tokenizer.load(folder)


def test_the_smallest_model_is_read(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, model())
    assert tokenizer.encode("aa", bos=False) == [0, 1, 1]
    assert (tokenizer.bos_token, tokenizer.eos_ids) == (None, ())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "not a SentencePiece model"),
        (b"IQ== 0\nIg== 1\n", "not a SentencePiece model.*tiktoken"),
        (b"\n\xff\xff\xff\xff\x0f", "field 1 is cut off"),
        (b"\n" + b"\xff" * 20, "more than ten bytes"),
        (b"\n\x80", "ends inside a number"),
        (model((1, 3)), "expected bytes, but got the number 3"),
        (model((1, message((1, b"\xff\xfe")))), "invalid start byte"),
        (model((1, message((2, 1.0)))), "piece 2 has no text"),
        (model((1, message((1, b"b"), (3, b"x")))), "expected a number, but got 1 bytes"),
        (model((1, message((1, b"b"), (2, b"xy")))), "expected a float, but got 2 bytes"),
        (model() + b"\x1b", "unknown wire type 3"),
        (model((1, message((1, b"a")))), "expected one or more pieces, all different"),
        (model((1, message((1, b"b"), (2, float("nan"))))), "not finite"),
        (model(kind=3), "model type word is not supported"),
        (model(kind=9), "model type unknown is not supported"),
        (model(trainer=message((24, 1))), "handling of spaces is not supported"),
        (model() + message((3, message((5, 0)))), "handling of spaces is not supported"),
        (model() + message((3, message((2, b"xxxx")))), "not a usable tokenizer"),
        (message((1, message((1, b"a"))), (2, message((3, 1)))), "a piece for unknown text"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, data: bytes, expected: str) -> None:
    with pytest.raises(ModelError, match=expected):
        loaded(tmp_path, data)


@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_damage_is_refused_or_harmless(tmp_path: Path, name: str) -> None:
    whole = (DATA / f"{name}.model").read_bytes()
    rng = random.Random(8)
    n_refused = 0
    for case in range(60):
        data = bytearray(whole)
        if case % 2:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        else:
            del data[rng.randrange(len(data)) :]
        try:
            loaded(tmp_path, bytes(data)).encode("the cat", specials=False)
        except ModelError:
            n_refused += 1
    assert n_refused > 20


def test_a_table_with_invalid_references_does_not_end_the_thread(tmp_path: Path) -> None:
    """`tokenizers` trusts the compiled replacements, and panics in the middle of a text."""
    whole = (DATA / "unigram.model").read_bytes()
    table = whole.index(struct.pack("<I", 1024)) + 4  # 256 units of four bytes
    refused = []
    for seed in range(8):
        units = random.Random(seed).randbytes(1024)
        try:
            loaded(tmp_path, whole[:table] + units + whole[table + 1024 :]).encode("Ａ the ﬁ …")
        except (ModelError, InvalidRequest) as error:
            refused.append(str(error))
    assert any("damaged" in reason for reason in refused)


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu.text.model_proto.MAX_BYTES", 100)
    with pytest.raises(ModelError, match="expected at most 100"):
        Tokenizer.load(DATA / "bpe.model")
    monkeypatch.undo()
    monkeypatch.setattr("gpu.text.model_proto.MAX_PIECES", 100)
    with pytest.raises(ModelError, match="more than 100 pieces"):
        Tokenizer.load(DATA / "bpe.model")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json: not found, nor tokenizer\.model"):
        Tokenizer.load(tmp_path)
