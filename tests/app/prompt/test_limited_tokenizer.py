"""A limited tokenizer gives the same ids and texts as one in this process, within limits."""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app import create_app, tale
from app.config import Settings
from app.engine.loading import load_engine
from app.engine_client import LocalEngine
from app.models.find_model import find_model
from app.processes.limited_process import LimitedProcess, LimitExceeded, ProcessLimits
from app.prompt import limited_tokenizer
from app.prompt.limited_tokenizer import (
    LimitedTokenizer,
    TokenizerLimitError,
    load_tokenizer,
)
from gpu import (
    Interventions,
    InvalidRequest,
    ModelError,
    QueueFull,
    Request,
    SamplingParams,
    Steer,
    TextChunk,
    Tokenizer,
    TokenTable,
)
from tests.app.conftest import wait_ready
from tests.app.fake_engine import loader
from tests.app.prompt import hostile_tokenizers as hostile
from tests.app.prompt.hostile_tokenizers import BEAST
from tests.gpu.gguf import gguf_models
from tests.gpu.text import made_tokenizers as made

ROOT = Path(__file__).parents[3]
MAX_SECONDS = 60
"""Time until a hostile tokenizer is stopped, on a busy machine."""
TEMPLATES = [
    {"name": "default", "template": "{{ messages }}"},
    {"name": "tool_use", "template": "2"},
]
CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATES}
FAMILIES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "byte level": (made.byte_level, {"bos_token": "<|begin|>", "add_bos_token": True}),
    "llama 3": (made.llama3, {"eos_token": "<|eot_id|>"}),
    "byte fallback": (made.byte_fallback, CONFIG),
    "unigram": (made.unigram, {}),
    "word piece": (made.word_piece, {}),
    "word level": (made.word_level, {}),
}
TEXTS = [
    "Once upon a time",
    "",
    "<s>the</s> cat<|im_end|>",
    "naïve 🙂 你好\t\r\n",
    " the",
    "<|begin|>the",
]


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    make, config = FAMILIES[request.param]
    return made.save(tmp_path, make(), config)


def same(ours: LimitedTokenizer, theirs: Tokenizer) -> None:
    """Assert that every method gives the same."""
    for text in TEXTS:
        for bos in (True, False):
            for specials in (True, False):
                try:
                    ids = theirs.encode(text, bos, specials)
                except InvalidRequest as error:
                    with pytest.raises(InvalidRequest, match=re.escape(str(error))):
                        ours.encode(text, bos, specials)
                    continue
                assert ours.encode(text, bos, specials) == ids
                assert ours.decode(ids) == theirs.decode(ids)
                for inside in (True, False):
                    asked = (text, bos, specials, inside)
                    assert ours.encode_with_offsets(*asked) == theirs.encode_with_offsets(*asked)
    for text in ("Once upon a time", "", "naïve 🙂 你好\t\r\n", "x" * 101):
        try:
            steps = theirs.segment(text)
        except InvalidRequest as error:
            with pytest.raises(InvalidRequest, match=re.escape(str(error))):
                ours.segment(text)
        else:
            assert ours.segment(text) == steps
    chunks = [TextChunk("the", True, inside) for inside in (False, True)] + [TextChunk(" cat")]
    for offsets in (True, False):
        assert ours.encode_batch(chunks, offsets) == theirs.encode_batch(chunks, offsets)
    for id in range(-2, theirs.vocab_size + 2):
        assert ours.piece(id) == theirs.piece(id)
        assert ours.token_bytes(id) == theirs.token_bytes(id)
        assert ours.is_special(id) == theirs.is_special(id)
    facts = ("special_tokens", "eos_ids", "chat_template", "tool_template", "prefix")
    for name in (*facts, "vocab_size", "n_stripped_spaces"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_the_limited_tokenizer_gives_the_same_ids(folder: Path) -> None:
    same(LimitedTokenizer.load(folder), Tokenizer.load(folder))


def test_the_limited_tokenizer_of_a_gguf_file_gives_the_same_ids(tmp_path: Path) -> None:
    path = gguf_models.write(tale.model_dir(), tmp_path / "tale.gguf", "F16", pre="qwen2")
    same(LimitedTokenizer.load(path), Tokenizer.load(path))


def test_only_the_bundled_tokenizer_is_in_this_process(tmp_path: Path) -> None:
    assert isinstance(load_tokenizer(tale.model_dir()), Tokenizer)
    copy = shutil.copytree(tale.model_dir(), tmp_path / "copy")
    assert isinstance(load_tokenizer(copy), LimitedTokenizer)


def test_errors_of_a_file_are_those_of_an_unlimited_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as theirs:
        Tokenizer.load(tmp_path)
    with pytest.raises(ModelError) as ours:
        LimitedTokenizer.load(tmp_path)
    assert str(ours.value) == str(theirs.value)
    tokenizer = LimitedTokenizer.load(made.save(tmp_path, made.byte_level()))
    with pytest.raises(InvalidRequest, match="'\\\\ud800' at 1, which is half of a surrogate"):
        tokenizer.encode("a\ud800")


# ---- hostile files ---------------------------------------------------------------------------

AT_LOADING = {
    "grows": (hostile.grows("a"), TokenizerLimitError, "longer than|memory"),
    "panics": (hostile.panics, ModelError, "damaged"),
    "decodes hugely": (
        hostile.decodes_hugely,
        ModelError,
        "at most 67,108,864 bytes in all tokens",
    ),
    "a distant id": (hostile.distant_id, ModelError, "greatest token id is 4294967295"),
}


@pytest.mark.parametrize(("change", "kind", "reason"), AT_LOADING.values(), ids=AT_LOADING)
def test_a_tokenizer_that_harms_when_it_is_read_is_refused(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: hostile.Change,
    kind: type[ModelError],
    reason: str,
) -> None:
    monkeypatch.setattr(limited_tokenizer, "LOAD_SECONDS", 8.0)
    begun = time.monotonic()
    with pytest.raises(kind, match=reason) as refusal:
        load_tokenizer(hostile.save(tmp_path, change))
    assert time.monotonic() - begun < MAX_SECONDS
    assert str(tmp_path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(200 << 20)
    begun = time.monotonic()
    with pytest.raises(ModelError, match=r"has 209,715,200 bytes; expected .* at most 104,857,600"):
        load_tokenizer(tmp_path)
    assert time.monotonic() - begun < MAX_SECONDS


AT_A_TEXT: dict[str, tuple[hostile.Change, str, str]] = {
    "grows": (hostile.grows(BEAST), BEAST, "longer than|memory"),
    "makes many tokens": (hostile.many_tokens, BEAST, "longer than|far too many tokens"),
    "is quadratic": (hostile.quadratic, "a" * 100_000, "longer than"),
    "backtracks": (hostile.backtracks, "x" * 60, "longer than|fails on this text"),
}


@pytest.mark.parametrize(("change", "text", "reason"), AT_A_TEXT.values(), ids=AT_A_TEXT)
def test_a_text_that_harms_is_refused_and_the_next_is_not(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: hostile.Change,
    text: str,
    reason: str,
) -> None:
    monkeypatch.setattr(limited_tokenizer, "ENCODE_SECONDS", 1.0)
    tokenizer = load_tokenizer(hostile.save(tmp_path, change))
    before = tokenizer.encode("aa c")
    begun = time.monotonic()
    with pytest.raises(InvalidRequest, match=reason) as refusal:
        tokenizer.encode(text)
    assert time.monotonic() - begun < MAX_SECONDS
    assert "\n" not in str(refusal.value)
    assert isinstance(tokenizer, LimitedTokenizer)
    tokenizer._cache.clear()
    assert tokenizer.encode("aa c") == before != []
    assert capfd.readouterr() == ("", "")


def test_a_short_text_need_not_wait_for_a_long_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[LimitedProcess] = []
    start = limited_tokenizer._start

    def recorded(path: Path) -> tuple[LimitedProcess, TokenTable]:
        process, table = start(path)
        started.append(process)
        return process, table

    monkeypatch.setattr(limited_tokenizer, "_start", recorded)
    monkeypatch.setattr(limited_tokenizer, "ENCODE_SECONDS", 60.0)
    tokenizer = load_tokenizer(hostile.save(tmp_path, hostile.quadratic))
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(tokenizer.encode, "a" * 1_000_000)  # takes minutes
        deadline = time.monotonic() + MAX_SECONDS
        while len(started) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert tokenizer.encode("aa c") != []
        assert not long.done()
        os.kill(started[1].pid, signal.SIGKILL)
        with pytest.raises(InvalidRequest):
            long.result()


def test_the_server_answers_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_tokenizer, "ENCODE_SECONDS", 1.0)
    hostile.save(tmp_path, hostile.grows(BEAST))
    config = {"chat_template": "{{ messages[0].content }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    engine = LocalEngine(loader(delay=0), load_tokenizer(tmp_path))
    engine.start()
    wait_ready(engine)
    http = create_app(Settings(port=0), engine).test_client()

    def ask(text: str) -> Any:
        return http.post("/v1/completions", json={"prompt": text, "max_tokens": 2, "echo": True})

    def chat(text: str) -> Any:
        messages = [{"role": "user", "content": text}]
        return http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2})

    try:
        with ThreadPoolExecutor(2) as pool:
            attack = pool.submit(ask, BEAST)
            assert http.get("/health").status_code == 200
            refused = attack.result()
        assert refused.status_code == 400
        assert (
            "the model's tokenizer cannot encode this text: it" in refused.json["error"]["message"]
        )
        assert chat(BEAST).status_code == 400
        assert ask("the cat").status_code == chat("the cat").status_code == 200
    finally:
        engine.close()


@pytest.mark.slow
def test_the_number_of_waiting_texts_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_tokenizer, "ENCODE_SECONDS", 1.0)
    monkeypatch.setattr("app.processes.limited_pool.MAX_WAITING", 2)
    tokenizer = load_tokenizer(hostile.save(tmp_path, hostile.quadratic))

    def attack(n: int) -> str:
        with pytest.raises((InvalidRequest, QueueFull)) as refusal:
            tokenizer.encode("a" * (100_000 + n))
        return str(refusal.value)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(attack, range(8)))
    full = [a for a in answers if a == "too many texts are being encoded; try again in a moment"]
    assert len(full) == 5
    assert sum("longer than" in answer for answer in answers) == 3


# ---- its process -----------------------------------------------------------------------------


def pid_of(tokenizer: LimitedTokenizer) -> int:
    (process,) = tokenizer._pool._idle
    return process.pid


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_a_process_that_was_killed_is_started_again(folder: Path) -> None:
    tokenizer = LimitedTokenizer.load(folder)
    ids = tokenizer.encode("the cat ")
    pid = pid_of(tokenizer)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert tokenizer.encode("the cat  ") == Tokenizer.load(folder).encode("the cat  ")
    assert tokenizer.encode("the cat ") == ids
    assert pid_of(tokenizer) != pid


def test_the_process_ends_when_closed_or_unreferenced(tmp_path: Path) -> None:
    tokenizer = LimitedTokenizer.load(made.save(tmp_path, made.byte_level()))
    first = pid_of(tokenizer)
    tokenizer.close()
    assert is_gone(first)
    tokenizer.encode("the")
    second = pid_of(tokenizer)
    del tokenizer
    gc.collect()
    assert is_gone(second)


def test_a_tokenizer_file_that_changed_since_loading_is_refused(tmp_path: Path) -> None:
    tokenizer = LimitedTokenizer.load(made.save(tmp_path, made.byte_level()))
    made.save(tmp_path, made.byte_level(390))
    tokenizer.close()
    with pytest.raises(
        InvalidRequest, match="has changed since it was loaded; load the model again"
    ):
        tokenizer.encode("the")


def test_a_process_has_neither_files_nor_environment_nor_much_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/proc/self/limits").exists():
        pytest.skip("reads Linux's /proc")
    monkeypatch.setenv("TOKENGLASS_TOKEN", "secret")
    secret = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        tokenizer = LimitedTokenizer.load(made.save(tmp_path, made.byte_level()))
    finally:
        os.close(secret)
    process = Path(f"/proc/{pid_of(tokenizer)}")
    opened = {os.readlink(link) for link in (process / "fd").iterdir()}
    assert not [name for name in opened if str(tmp_path) in name or __file__ in name], opened
    assert b"secret" not in (process / "environ").read_bytes()
    limits = (process / "limits").read_text()
    for name in ("open files", "processes", "file size", "core file size"):
        (line,) = [line for line in limits.splitlines() if line.startswith(f"Max {name} ")]
        assert line.removeprefix(f"Max {name}").split()[:2] == ["0", "0"], line
    maps = (process / "maps").read_text()
    assert "wgpu" not in maps
    assert "flask" not in maps


def test_a_reply_that_is_too_large_ends_the_process() -> None:
    process = LimitedProcess("tests.app.engine.loud_process", ProcessLimits(256 << 20, 1000))
    assert process.call(b"999", 10) == b"x" * 999
    with pytest.raises(
        LimitExceeded, match="produced 1,001 bytes of output, but the limit is 1,000"
    ):
        process.call(b"1001", 10)
    assert not process.alive
    with pytest.raises(LimitExceeded, match="has no running process"):
        process.call(b"1", 10)


LATE = """
from app import limited_child
limited_child.resource = None
limited_child.GRACE_SECONDS = 0.0
limited_child._end_after(5.0)
limited_child._end_after(None)
limited_child._end_after(0.3)
sum(range(10 ** 12))
"""


def test_without_system_limits_a_process_that_lost_its_server_ends_itself() -> None:
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", LATE], cwd=ROOT, stderr=subprocess.DEVNULL)
    assert done.returncode == 1
    assert time.monotonic() - begun < MAX_SECONDS


# ---- the engine ------------------------------------------------------------------------------


def test_the_engine_reads_no_tokenizer(tmp_path: Path) -> None:
    copy = shutil.copytree(tale.model_dir(), tmp_path / "copy")
    settings = Settings(model=str(copy), context=64, max_num_seqs=1, weight_cache=0)
    model = find_model(settings, must_fit=False)
    steered = model.tokenizer.encode("The forest")
    sent = pickle.loads(pickle.dumps(model.source))
    (copy / "tokenizer.json").write_text("{}")
    engine = load_engine(settings, sent, lambda done, message: None)
    try:
        ids = model.tokenizer.encode("Once upon a time")
        greedy = SamplingParams(temperature=0.0, max_tokens=8)
        steer = Interventions(steer=(Steer(1, "The forest", 2.0),))
        written = list(engine.submit(Request(ids, greedy, interventions=steer)))
        assert sent.tokenizer.encode("The forest") == steered
        assert sent.tokenizer._pool._idle == []
        text = "".join(token.text for token in written)
        assert text == model.tokenizer.decode([token.id for token in written])
    finally:
        engine.close()


# ---- the command line ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(hostile.grows("a"), "x", id="at loading"),
        pytest.param(hostile.quadratic, "a" * 99_999, id="at a text"),
    ],
)
def test_the_command_line_prints_one_error_line(
    tmp_path: Path, change: hostile.Change, text: str
) -> None:
    copy = shutil.copytree(tale.model_dir(), tmp_path / "copy")
    hostile.save(copy, change)
    (copy / "tokenizer_config.json").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "app", "generate", text, "--model", str(copy)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * MAX_SECONDS,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert "tokenizer" in done.stderr
    assert done.stderr.count("\n") == 1
