"""A server process prints its state, ends cleanly, and leaves no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest

from app.config import Settings
from app.protocol.messages import Hello, Status
from app.server import LOADING, PortError, _StatusPrinter, address, bind, http_server
from gpu.info import EmbeddingInfo, KvGroupInfo
from tests.app.conftest import Site, StartSite
from tests.app.engine.processes import engine_pids, has_exited, wait_exited
from tests.app.fake_encoder import SEQ2SEQ_INFO
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions
from tests.app.page import PageClient, wait_until

StartServer = Callable[..., "Server"]

SIGNALS = [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
PATIENCE_S = 40
"""Timeout for a process to end on a busy machine."""


class Server:
    """Process of `python -m tests.app.fake_server`. `before` is a command that starts it."""

    def __init__(self, *args: str, before: Sequence[str] = ()) -> None:
        fake = [sys.executable, "-m", "tests.app.fake_server", "--process", "--port", "0"]
        self.process = subprocess.Popen(
            [*before, *fake, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self, pattern: str) -> str:
        """Read up to a line that matches the pattern; return its first group."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(pattern, line):
                return found.group(1)
        raise AssertionError(f"no line with {pattern!r}; errors: {self.errors()}")

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    servers: list[Server] = []

    def start(*args: str) -> Server:
        servers.append(Server(*args))
        return servers[-1]

    yield start
    for server in servers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.communicate()


def ready(start_server: StartServer) -> tuple[Server, int]:
    """Server whose engine is ready, and the process id of its engine."""
    server = start_server()
    engine = int(server.line("engine process ([0-9]+)"))
    server.line("(Ready)")
    return server, engine


def assert_ends_cleanly(server: Server, engine: int) -> None:
    assert server.process.wait(PATIENCE_S) == 0
    wait_exited(engine)
    assert server.errors() == ""


def test_the_address_is_printed_before_the_model_is_loaded(start_server: StartServer) -> None:
    """Then it prints how its weights are stored and why, and how those of a file were converted."""
    conversion, reason = "Q4_K, Q6_K converted to q4", "f32 needs 9 GB"
    server = start_server(
        "--load-seconds", "3", "--conversion", conversion, "--dtype-reason", reason
    )
    url = server.line("(http://127.0.0.1:[0-9]+/)")
    server.line("(Loading)")
    with pytest.raises(urllib.error.HTTPError) as health:
        urllib.request.urlopen(f"{url}health")
    assert health.value.code == 503
    assert b"Tokenglass" in urllib.request.urlopen(url).read()
    server.line("(Ready)")
    assert server.line("^Storage type: (.+)") == f"f16, because {reason}"
    assert server.line("^Weights: (.+)") == conversion


@pytest.mark.parametrize("number", SIGNALS)
def test_the_server_ends_cleanly_and_ends_its_engine(
    start_server: StartServer, number: signal.Signals
) -> None:
    server, engine = ready(start_server)
    if number == signal.SIGINT:  # a terminal signals the whole process group
        os.killpg(server.process.pid, number)
    else:
        server.process.send_signal(number)
    assert_ends_cleanly(server, engine)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_engine_leaves_signals_to_the_server(
    start_server: StartServer, number: signal.Signals
) -> None:
    """When the process group is signalled, the engine may get the signal first."""
    server, engine = ready(start_server)
    os.kill(engine, number)
    time.sleep(0.2)
    os.kill(server.process.pid, signal.SIGTERM)
    assert_ends_cleanly(server, engine)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_the_server_as_cleanly(
    start_server: StartServer, number: signal.Signals
) -> None:
    """Service managers signal all processes of the group until they are gone."""
    server, engine = ready(start_server)
    deadline = time.monotonic() + PATIENCE_S
    while server.process.poll() is None and time.monotonic() < deadline:
        os.killpg(server.process.pid, number)
        time.sleep(0.005)
    assert_ends_cleanly(server, engine)


ENDS_WITHIN_S = 10.0
TELLINGS = {
    "SIGTERM": [signal.SIGTERM],
    "SIGINT": [signal.SIGINT],
    "twice": [signal.SIGINT, signal.SIGINT],
    "both": [signal.SIGTERM, signal.SIGINT],
}


@pytest.mark.parametrize(
    "told",
    [name if name == "SIGINT" else pytest.param(name, marks=pytest.mark.slow) for name in TELLINGS],
)
def test_the_server_ends_although_its_engine_is_frozen(
    start_server: StartServer, told: str
) -> None:
    """Four pages are generating, and the watchdog has not noticed yet."""
    server = start_server("--silent", "600", "--delay", "0.01")
    port = int(server.line("http://127.0.0.1:([0-9]+)/"))
    engine = int(server.line("engine process ([0-9]+)"))
    server.line("(Ready)")
    pages = [PageClient(port) for _ in range(4)]
    for page in pages:
        page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 400})
        page.until("token", index=1)
    os.kill(engine, signal.SIGSTOP)
    _ends_in_time(server, *TELLINGS[told])
    assert has_exited(engine)


def test_the_server_ends_although_its_engine_froze_while_loading(start_server: StartServer) -> None:
    server = start_server("--load-seconds", "60")
    server.line("(Loading)")
    wait_until(lambda: bool(engine_pids(server.process.pid)))
    (engine,) = engine_pids(server.process.pid)
    os.kill(engine, signal.SIGSTOP)
    _ends_in_time(server, signal.SIGTERM)
    assert has_exited(engine)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_the_server_ends_while_its_engine_restarts(start_server: StartServer, frozen: bool) -> None:
    server = start_server("--load-seconds", "2")
    first = int(server.line("engine process ([0-9]+)"))
    server.line("(Ready)")
    os.kill(first, signal.SIGKILL)
    server.line("(The engine stopped)")
    time.sleep(1)
    engines = engine_pids(server.process.pid)
    if frozen:
        for engine in engines:
            os.kill(engine, signal.SIGSTOP)
    _ends_in_time(server, signal.SIGTERM)
    assert all(has_exited(engine) for engine in engines)


@pytest.mark.slow
def test_the_server_prints_when_it_retries_and_can_end_before(start_server: StartServer) -> None:
    """It prints one line per pause, and /health says so too."""
    server = start_server("--at-once", "0")
    url = server.line("(http://127.0.0.1:[0-9]+/)")
    for seconds in (1, 2, 4):
        engine = int(server.line("engine process ([0-9]+)"))
        server.line("(Ready)")
        os.kill(engine, signal.SIGKILL)
        said = server.line("(The engine stopped .* s$)")
        assert said.endswith(f"signal SIGKILL); trying again in {seconds} s")
    with pytest.raises(urllib.error.HTTPError) as health:
        urllib.request.urlopen(f"{url}health")
    assert health.value.code == 503
    told = json.load(health.value)["error"]["message"]
    assert re.search(r"3 times in a row \(signal SIGKILL\); trying again in [1-4] s", told), told
    began = time.monotonic()
    _ends_in_time(server, signal.SIGTERM)
    assert time.monotonic() - began < 3


@pytest.mark.slow
def test_a_server_that_was_stopped_keeps_its_engine(start_server: StartServer) -> None:
    """After Ctrl+Z or suspend, no time has passed for either process."""
    server = start_server("--silent", "2")
    engine = int(server.line("engine process ([0-9]+)"))
    server.line("(Ready)")
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.killpg(server.process.pid, number)
        time.sleep(5 if number == signal.SIGSTOP else 3)
    assert not has_exited(engine)
    _ends_in_time(server, signal.SIGTERM)


def _ends_in_time(server: Server, *numbers: signal.Signals) -> None:
    for number in numbers:
        server.process.send_signal(number)
        time.sleep(0.2)
    assert server.process.wait(ENDS_WITHIN_S) == 0


def test_the_start_line_tells_what_sliding_windows_save() -> None:
    """Of a model as Gemma 3: five layers with a window for each that reads everything."""
    groups = (KvGroupInfo(1, None), *[KvGroupInfo(1, 64)] * 5)
    for kv_groups, more in (
        ((), ""),
        (
            groups,
            "; 5 of 6 layers free what leaves their sliding window: a text of 512 tokens keeps "
            "27 % of its keys and values",
        ),
    ):
        engine = FakeEngine(FakeOptions(n_layers=6, kv_groups=kv_groups))
        lines: list[str] = []
        printer = _StatusPrinter(None, lines.append)  # type: ignore[arg-type]
        printer.on_state(Status("ready", "ready"), Hello.of(engine.info, chat=True))
        (line,) = (line for line in lines if line.startswith("KV cache: "))
        assert line.endswith(f" of 16 tokens; up to 512 tokens for each of 4 at once{more}")


def test_the_start_names_the_embedding_model() -> None:
    hello = Hello.of(FakeEngine(FakeOptions()).info, chat=True)
    beside = EmbeddingInfo("mini", 6, 384, 30522, 256, "mean", normalize=True, n_bytes=117_200_000)
    for embedding, expected in (
        (None, []),
        (beside, ["Embedding model: mini (117.2 MB), 384 numbers for a text of up to 256 tokens"]),
    ):
        lines: list[str] = []
        printer = _StatusPrinter(None, lines.append)  # type: ignore[arg-type]
        ready = msgspec.structs.replace(hello, embedding=embedding)
        printer.on_state(Status("ready", "ready"), ready)
        assert [line for line in lines if line.startswith("Embedding model: ")] == expected


def test_the_start_names_the_encoder_decoder() -> None:
    hello = Hello.of(FakeEngine(FakeOptions(encoder_decoder=SEQ2SEQ_INFO)).info, chat=True)
    lines: list[str] = []
    printer = _StatusPrinter(None, lines.append)  # type: ignore[arg-type]
    printer.on_state(Status("ready", "ready"), hello)
    line = "Encoder-decoder: little-t5 (0.0 MB), reads texts of up to 16 tokens and writes up to 8"
    assert line in lines


def test_loading_is_told_after_a_download() -> None:
    """The fetch of the first model tells it itself; of a later one the state does."""
    engine = FakeEngine(FakeOptions())
    for fetches, told in ((False, [LOADING, LOADING]), (True, [LOADING])):
        lines: list[str] = []
        printer = _StatusPrinter(None, lines.append, fetches=fetches)  # type: ignore[arg-type]
        printer.on_state(Status("loading", "downloading x"), None)
        printer.on_state(Status("ready", "ready"), Hello.of(engine.info, chat=True))
        printer.on_state(Status("loading", "starting the engine"), None)
        assert [line for line in lines if line == LOADING] == told
        assert lines[-1] == LOADING


def test_the_server_goes_on_when_nobody_reads_what_it_prints(start_server: StartServer) -> None:
    """As after `| head`, or without its terminal: its engine is restarted and ended as ever."""
    server = start_server()
    url = server.line("(http://127.0.0.1:[0-9]+/)")
    engine = int(server.line("engine process ([0-9]+)"))
    assert server.process.stdout is not None
    assert server.process.stderr is not None
    server.process.stdout.close()
    wait_until(lambda: _is_healthy(url))
    os.kill(engine, signal.SIGKILL)
    said = server.process.stderr.readline()  # when it is no longer ready
    assert said == "the engine's process ended unexpectedly (signal SIGKILL)\n"
    wait_until(lambda: _is_healthy(url))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE_S) == 0
    assert server.errors() == ""


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}health") as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def test_ctrl_c_while_loading(start_server: StartServer) -> None:
    server = start_server("--load-seconds", "2")
    server.line("(Loading)")
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(PATIENCE_S) == 0
    assert server.errors() == ""


def test_the_engine_does_not_outlive_a_killed_server(start_server: StartServer) -> None:
    server = start_server()
    engine = int(server.line("engine process ([0-9]+)"))
    server.process.kill()
    wait_exited(engine)


def test_a_model_that_cannot_be_loaded_ends_the_server(start_server: StartServer) -> None:
    server = start_server("--fail", "model.safetensors: cut off")
    assert server.process.wait(PATIENCE_S) == 1
    assert server.errors() == "model.safetensors: cut off\n"


def test_the_server_listens_on_ipv6_too(start_site: StartSite) -> None:
    try:
        listener = bind("::1", 0)
    except PortError:
        pytest.skip("this machine has no IPv6")
    with listener:
        app = start_site().app
        server = http_server(listener, app)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = address(Settings(host="::1"), server.port)
        assert urllib.request.urlopen(f"{url}health").status == 200
        server.shutdown()
        server.server_close()


def test_a_host_that_is_no_name_is_no_address() -> None:
    with pytest.raises(PortError, match=r"--host 192\.\.168\.1\.1 is not an address"):
        bind("192..168.1.1", 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nOrigin: http://localhost\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_hurt_nobody(site: Site, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = sock.recv(12)
    assert re.match(rb"HTTP/1.1 (4|505)", answer) or answer == b"", answer
    assert urllib.request.urlopen(f"{site.url}/health").status == 200
