"""An engine that several servers use, as one connection of them has it."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import msgspec

from app.cluster.shared_engine import SharedEngine
from app.engine.main import EngineMain
from app.engine.pipe import FromEngine, RunEvent, Submit
from gpu import Engine, Request, SamplingParams
from gpu.events import Accepted, Done
from tests.app.page import wait_until
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer


def test_ended_runs_are_forgotten_and_the_others_end_with_the_connection(tmp_path: Path) -> None:
    engine = Engine(
        lambda: ScriptedRunner(n_slots=2, n_blocks=16, context=256), byte_tokenizer(tmp_path)
    )
    shared = SharedEngine(engine, 1)
    server, theirs = multiprocessing.Pipe()
    main = EngineMain(theirs, on_hang_up=lambda: None)
    serving = threading.Thread(target=main.serve, args=(lambda progress: shared,), daemon=True)
    serving.start()
    decoder = msgspec.msgpack.Decoder(FromEngine)

    def submit(number: int, until: type[Accepted | Done], pace: float | None = None) -> None:
        request = Request([1, 2, 3], SamplingParams(max_tokens=4), pace=pace)
        server.send_bytes(msgspec.msgpack.encode(Submit(number, number, request)))
        while True:
            message = decoder.decode(server.recv_bytes())
            if isinstance(message, RunEvent) and isinstance(message.event, until):
                return

    for number in range(3):
        submit(number, Done)
        assert not shared._runs
    submit(3, Accepted, pace=0.0)
    wait_until(lambda: None not in shared._runs.values())
    assert len(shared._runs) == 1
    wait_until(lambda: engine.stats.n_paused == 1)
    server.close()
    serving.join()
    wait_until(lambda: engine.stats.n_paused == 0)
    engine.close()
