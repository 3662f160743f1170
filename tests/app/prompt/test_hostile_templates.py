"""Templates that never end or fill the memory are stopped, and delay other requests little."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.prompt import chat_template as chat
from app.prompt.chat_template import apply_chat_template
from app.protocol.messages import Message
from e2e.processor_time import descendants_seconds
from gpu import InvalidRequest, QueueFull
from tests.app.prompt.real_templates import SOURCES, template
from tests.app.test_server import Server

CONVERSATION = [Message("user", "Hi")]
ATTACK = [Message("user", "Attack")]
"""Messages of a hostile template, by which `short` knows it."""
SECONDS = 0.5
"""Time limit of hostile templates in these tests; the server's is 2 s."""
MAX_SECONDS = 20 * SECONDS
"""Time until one is stopped, and of an ordinary one, on a busy machine."""
OVER = r"longer than|MiB of memory|more than \d+ characters|MemoryError|crashes its process"
NESTED = (
    "{% set ns = namespace(x=[], y=[]) %}{% for _ in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)
"""Two small lists; comparing them visits 2^60 lists."""
TUPLES = NESTED.translate({ord("["): "(", ord("]"): ")"})
BIG = (
    "{% set ns = namespace(n=9) %}{% for _ in range(23) %}{% set ns.n = ns.n * ns.n %}{% endfor %}"
)
"""Number with millions of digits."""
HOSTILE = {
    "index": NESTED + "{{ [ns.y].index(ns.x) }}",
    "count": NESTED + "{{ [ns.y].count(ns.x) }}",
    "tuple index": TUPLES + "{{ (ns.y,).index(ns.x) }}",
    "sort": NESTED + "{{ [ns.x, ns.y] | sort | length }}",
    "max": NESTED + "{{ [ns.x, ns.y] | max | length }}",
    "unique": TUPLES + "{{ [ns.x, ns.y] | unique | list | length }}",
    "groupby": NESTED + "{{ [{'a': ns.x}, {'a': ns.y}] | groupby('a') | length }}",
    "the test eq": NESTED + "{{ ns.x is eq(ns.y) }}",
    "the test in": NESTED + "{{ ns.x is in([ns.y]) }}",
    "equal": NESTED + "{{ ns.x == ns.y }}",
    "less": NESTED + "{{ ns.x < ns.y }}",
    "in": NESTED + "{{ ns.x in [ns.y] }}",
    "a key of a dict": TUPLES + "{{ {ns.x: 1} | length }}",
    "keys": TUPLES + "{{ dict.fromkeys([ns.x], 1) | length }}",
    "loop.changed": NESTED
    + "{% for v in [ns.x, ns.y] %}{{ 'a' if loop.changed(v) else 'b' }}{% endfor %}",
    "select": NESTED + "{{ [ns.x] | select('equalto', ns.y) | list | length }}",
    "as text": NESTED + "{{ ns.x }}",
    "as JSON": NESTED + "{{ ns.x | tojson }}",
    "raised": NESTED + "{{ raise_exception(ns.x) }}",
    "divided": BIG + "{% for i in range(99999) %}{% if ns.n // 7 == i %}{% endif %}{% endfor %}",
    "remainder": BIG + "{% for i in range(99999) %}{% if ns.n % 77 == i %}x{% endif %}{% endfor %}",
    "digits": "{{ ('f' * 400000000) | int(0, 16) > 1 }}",
    "many digits": "{% for i in range(99999) %}"
    "{{ (('f' * 4000000) ~ i) | int(0, 16) > 1 }}{% endfor %}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "powers": BIG + "{{ ns.n ** ns.n > 1 }}",
    "endless": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "endless line": "{{ range(99999) | map('string') | map('list') | list | length }}" * 999,
    "large text": "{{ 'a' * 10**10 }}",
    "large list": "{{ [0] * 10**10 }}",
    "doubled text": "{% set ns = namespace(s='a') %}{% for i in range(99) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "large output": "{% for i in range(99999) %}{{ 'abcdefghij' * 99 }}{% endfor %}",
    "large macro": "{% macro f() %}{% for i in range(99999) %}{{ 'x' * 4000000 }}{% endfor %}"
    "{% endmacro %}{{ f() | length }}",
    "centred": "{{ 'a'.center(10**10) }}",
    "replaced": "{{ ('a' * 99999).replace('a', 'b' * 99999) | length }}",
    "joined": "{{ ('b' * 999999).join(('a ' * 999999).split()) }}",
    "formatted": "{{ '%9999999999d' % 1 }}",
    "formatted by a star": "{{ '%*d' % (10**9, 1) }}",
    "formatted by a field": "{{ '{:>{}}'.format('a', 10**10) }}",
    "wrapped": "{{ (9999999 * 'a') | wordwrap(1) | length }}",
    "indented objects": "{{ range(9999) | list | tojson(indent=999999) }}",
    "lists summed": "{{ ([range(99999) | list] * 999) | sum(start=[]) | length }}",
    "bytes": "{{ 'a'.encode().ljust(9999999999) }}",
    "a number as bytes": "{{ (1).to_bytes(9999999999, 'big') }}",
    "nested brackets": "{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}",
    "nested lists": "{{ " + "[" * 100000 + "]" * 100000 + " }}",
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """End hostile templates soon, but give the others time, also on a busy machine."""
    call = chat.POOL.call

    def limited(request: bytes, max_seconds: float) -> bytes:
        assert max_seconds == chat.MAX_SECONDS
        return call(request, SECONDS if b'"Attack"' in request else MAX_SECONDS)

    monkeypatch.setattr(chat.POOL, "call", limited)


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_is_ended(hostile: str, short: None) -> None:
    begun = time.monotonic()
    with pytest.raises(InvalidRequest, match=f"{OVER}|Recursion|nested|too many") as refusal:
        apply_chat_template(hostile, ATTACK)
    assert time.monotonic() - begun < MAX_SECONDS
    assert refusal.value.param == "messages"
    assert apply_chat_template("{{ messages[0].content }}", CONVERSATION) == "Hi"


def test_other_templates_are_rendered_meanwhile(short: None) -> None:
    """They are rendered one after the other, while one process is always busy or being replaced."""
    all_idle()
    qwen = template("qwen-3")
    ended: list[str] = []

    def attack() -> None:
        for hostile in [HOSTILE["index"], HOSTILE["sort"], HOSTILE["powers"]]:
            with pytest.raises(InvalidRequest, match="longer than") as refusal:
                apply_chat_template(hostile, ATTACK)
            ended.append(str(refusal.value))

    apply_chat_template(qwen, CONVERSATION)
    thread = threading.Thread(target=attack)
    thread.start()
    n_rendered = 0
    while thread.is_alive():
        assert apply_chat_template(qwen, CONVERSATION).startswith("<|im_start|>user\nHi")
        n_rendered += 1
        time.sleep(0.01)
    assert len(ended) == 3
    assert n_rendered > 2 * len(ended), "if they waited, there would be one for each attack"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's /proc")
def test_ordinary_rendering_takes_less_than_five_milliseconds() -> None:
    """Of the processors, and at its fastest: how long it waits for one is not its own."""
    all_idle()  # the start of a process takes more than the renderings
    turns = [Message("user", "Who is Mia?"), Message("assistant", "A fox in the forest.")]
    messages = [*turns * 5, turns[0]]
    tokens = SOURCES["llama-3.1"].tokens
    source = template("llama-3.1")
    for _ in range(8):
        apply_chat_template(source, messages, **tokens)
    seconds, used = [], _processor_seconds()
    for _ in range(200):
        begun = time.perf_counter()
        apply_chat_template(source, messages, **tokens)
        seconds.append(time.perf_counter() - begun)
    assert (_processor_seconds() - used) / len(seconds) < 0.005
    assert min(seconds) < 0.005


def _processor_seconds() -> float:
    """Return the processor time of this process and of those that render."""
    of_pool = descendants_seconds(b"app.prompt.template_process")
    assert of_pool
    return time.process_time() + of_pool


def all_idle() -> None:
    chat.POOL.warm()
    deadline = time.monotonic() + 20
    while len(chat.POOL._idle) < chat.POOL.n_processes:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_number_of_waiting_templates_is_bounded(
    short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.processes.limited_pool.MAX_WAITING", 2)
    monkeypatch.setattr("app.processes.limited_pool.WAIT_SECONDS", MAX_SECONDS)

    all_idle()

    def attack(_: int) -> str:
        try:
            return apply_chat_template(HOSTILE["index"], ATTACK)
        except QueueFull as error:
            return f"full: {error}"
        except InvalidRequest as error:
            return str(error)

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(attack, range(12)))
    full = [answer for answer in answers if answer.startswith("full: too many conversations")]
    assert 1 <= len(full) <= 12 - 2 - chat.POOL.n_processes
    assert all("longer than" in answer for answer in answers if answer not in full)
    assert apply_chat_template("{{ messages[0].content }}", CONVERSATION) == "Hi"


def test_waiting_for_a_process_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 3.0)
    monkeypatch.setattr("app.processes.limited_pool.WAIT_SECONDS", 0.2)
    all_idle()
    with ThreadPoolExecutor(8) as pool:
        hostile = [
            pool.submit(apply_chat_template, HOSTILE["index"], CONVERSATION)
            for _ in range(chat.POOL.n_processes)
        ]
        time.sleep(1)
        begun = time.monotonic()
        with pytest.raises(QueueFull, match="try again"):
            apply_chat_template("{{ 1 }}", CONVERSATION)
        assert time.monotonic() - begun < 2
        assert all(isinstance(each.exception(), InvalidRequest) for each in hostile)


def test_a_template_that_needed_much_memory_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 30.0)  # memory is the claim, also on a busy machine
    pool = chat.POOL
    pool.close()
    assert apply_chat_template("{{ ('x' * 200000000) | length }}", CONVERSATION) == "200000000"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pids = [process.pid for process in pool._idle]
        if pids and all(_memory(pid) < 100e6 for pid in pids):
            return
        time.sleep(0.05)
    pytest.fail("a process keeps the memory")


def test_memory_of_the_server_does_not_count_against_a_process() -> None:
    """The peak memory of a new process includes that of the server before exec."""
    chat.POOL.close()
    held = b"x" * (300 << 20)
    seen = set()
    for _ in range(5):
        assert apply_chat_template("{{ messages[0].content }}", CONVERSATION) == "Hi"
        seen |= {process.pid for process in chat.POOL._idle}
    assert len(seen) <= chat.POOL.n_processes
    assert held[-1:] == b"x"


def _memory(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


KILLED = """
import sys, threading, time
from app.prompt import chat_template as chat
from app.protocol.messages import Message
from tests.app.prompt.test_hostile_templates import HOSTILE

chat.POOL.warm()
chat.apply_chat_template("{{ 1 }}", [Message("user", "")])
chat.MAX_SECONDS = 1.5
hostile = [HOSTILE["index"]][: len(sys.argv) - 1]
for source in hostile:
    threading.Thread(target=chat.apply_chat_template, args=(source, [Message("user", "")])).start()
time.sleep(0.5)
while len(chat.POOL._idle) + len(hostile) < chat.POOL.n_processes:
    time.sleep(0.05)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "at work"])
def test_a_killed_server_leaves_no_process(busy: bool) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", KILLED, *(["busy"] if busy else [])],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    children = _children(server.pid)
    assert len(children) == chat.POOL.n_processes
    server.kill()
    server.wait()
    server.stdout.close()
    deadline = time.monotonic() + 30
    while any(_runs(pid) for pid in children):
        assert time.monotonic() < deadline, "a process outlives its server"
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.fixture
def server() -> Iterator[Server]:
    """Server with a template that is harmless for one message and hostile for two."""
    hostile = "{% if messages | length > 1 %}" + HOSTILE["index"] + "{% endif %}x"
    started = Server("--template", hostile)
    yield started
    if started.process.poll() is None:
        os.killpg(started.process.pid, signal.SIGKILL)
    started.process.communicate()


def test_a_server_answers_others_and_hears_sigterm_meanwhile(server: Server) -> None:
    port = int(server.line(r"http://127\.0\.0\.1:(\d+)/"))
    server.line("(Ready)")

    def ask(n: int) -> int:
        body = {"messages": [{"role": "user", "content": "Hi"}] * n, "max_tokens": 1}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return connection.getresponse().status

    assert ask(1) == 200
    with ThreadPoolExecutor(2) as pool:
        attack = pool.submit(ask, 2)
        n_answered = 0
        while not attack.done():
            assert ask(1) == 200
            n_answered += 1
        assert attack.result() == 400
        assert n_answered > 1, "if they waited, there would be one for the attack"
        attack = pool.submit(ask, 2)
        time.sleep(0.3)
        server.process.terminate()
        assert server.process.wait(10) == 0
        attack.exception()
