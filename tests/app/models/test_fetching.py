"""The server starts while the model is still being downloaded."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest

from app import tale
from app.engine.supervisor import Fetch, SupervisedEngine
from app.models.find_model import Model
from app.models.hub_errors import HubError
from app.models.progress_line import ProgressLine, fetch_with_line, transfer_line
from app.models.transfer import Cancelled, Transfer
from app.protocol.messages import Status
from gpu import DtypeChoice, Tokenizer
from tests.app.engine.processes import time_limit
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import FakeTokenizer

HALF = Transfer("model.safetensors", 5_000_000, 10_000_000, 6_000_000, 12_000_000, 2_500_000.0)
Tell = Callable[[Transfer], None]
Ended = Callable[[], bool]


def started(fetch: Fetch) -> tuple[SupervisedEngine, list[Status], threading.Event]:
    """Start an engine with `fetch`; return it, its states, and an event for its end."""
    engine = SupervisedEngine(loader(delay=0), FakeTokenizer(), fetch=fetch)
    heard: list[Status] = []
    settled = threading.Event()

    def on_state(status: Status, hello: object) -> None:
        heard.append(status)
        if status.state in ("ready", "failed"):
            settled.set()

    engine.listen(on_state)
    engine.start()
    return engine, heard, settled


def test_download_progress_reaches_the_page_before_the_engine_starts() -> None:
    engine, heard, settled = started(lambda tell, ended: tell(HALF))
    assert settled.wait(20)
    engine.close()
    assert heard[1] == Status("loading", str(HALF), 0.5)
    assert heard[1].message == (
        "downloading model.safetensors, 5.0 of 10.0 MB, 6.0 of 12.0 MB in all (2.5 MB/s, 2 s left)"
    )
    assert heard[-1].state == "ready"


def test_the_dialog_names_a_model_once() -> None:
    """It writes "Downloading NAME: " before the words."""
    amounts = "5.0 of 10.0 MB, 6.0 of 12.0 MB in all (2.5 MB/s, 2 s left)"
    assert HALF.of_model("model.safetensors") == amounts
    assert HALF.of_model("OWNER/MODEL") == f"model.safetensors, {amounts}"


@pytest.mark.parametrize(
    ("error", "message"),
    [(HubError("no network; check it"), "no network; check it"), (KeyError("x"), "KeyError: 'x'")],
)
def test_a_failed_download_is_not_loaded(error: Exception, message: str) -> None:
    def fail(tell: Tell, ended: Ended) -> None:
        raise error

    engine, heard, settled = started(fail)
    assert settled.wait(5)
    assert heard[-1] == Status("failed", message)
    assert engine.pid is None
    engine.close()


def test_closing_cancels_the_download() -> None:
    began, cancelled = threading.Event(), threading.Event()

    def fetch(tell: Tell, ended: Ended) -> None:
        began.set()
        while not ended():
            cancelled.wait(0.01)
        cancelled.set()
        raise Cancelled

    engine, heard, _ = started(fetch)
    assert began.wait(5)
    engine.close()
    assert cancelled.is_set()
    assert engine.pid is None
    assert [status.state for status in heard] == ["loading"]


def test_a_download_that_ignores_cancelling_is_not_waited_for() -> None:
    """If the network hangs, the server still ends within 10 s."""
    began = threading.Event()

    def fetch(tell: Tell, ended: Ended) -> None:
        began.set()
        threading.Event().wait(60)

    engine, _, _ = started(fetch)
    assert began.wait(5)
    with time_limit(10):
        engine.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_rewrites_one_line() -> None:
    out = Terminal()
    line = ProgressLine(out)
    line.show("long text")
    line.show("short")
    line.close()
    line.close()
    assert out.getvalue() == "\rlong text\rshort    \n"


def test_names_of_files_bring_no_control_characters_to_the_terminal() -> None:
    """Whoever made the repository chose them."""
    out = Terminal()
    ProgressLine(out).show("downloading a\x1b[2Jb.safetensors")
    assert out.getvalue() == "\rdownloading a�[2Jb.safetensors"


def test_progress_in_a_log_file_is_few_lines() -> None:
    out = io.StringIO()
    line = ProgressLine(out)
    for number in range(50):
        line.show(f"text {number}")
    line.close()
    assert out.getvalue() == "text 0\n"


class ClosedTerminal(Terminal):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stderr", [None, ClosedTerminal()], ids=["never there", "closed"])
def test_a_download_goes_on_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO | None
) -> None:
    """As with `2>&-`, and after the window was closed."""
    monkeypatch.setattr("sys.stderr", stderr)
    heard: list[Transfer] = []
    with transfer_line(heard.append) as show:
        show(HALF)
        show(HALF)
    assert heard == [HALF, HALF]


def test_a_cached_model_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    folder = tale.model_dir()
    fetch_with_line(Model("tale", folder, Tokenizer.load(folder), DtypeChoice("f16")))
    assert capsys.readouterr() == ("", "")
