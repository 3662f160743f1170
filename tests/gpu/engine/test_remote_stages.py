"""An engine whose stages are in processes of their own writes what one on a single device writes,
and says which stage is gone or cannot be loaded."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import pytest

from app.tale import model_dir
from gpu import StageAddress
from gpu.engine.engine import Engine
from gpu.errors import DeviceError, ModelError
from gpu.events import Done, Event, Token
from gpu.load_options import LoadOptions
from gpu.request import Request
from gpu.runners.stage_connection import StageConnection
from gpu.runners.stage_messages import (
    decode_output,
    decode_step,
    encode_output,
    encode_step,
)
from gpu.runners.stage_worker import OutputQueue, StageOutput
from gpu.runners.staged_runner import StagedRunner
from gpu.sampling_params import SamplingParams, TokenBias
from gpu.step import Row, Sample, Step, StepResult
from tests.gpu.models import random_llama
from tests.gpu.runners.remote_hosts import ProcessHosts, ThreadHosts

OPTIONS = LoadOptions(dtype="f32", context=128, slots=4)
IN_TWO = replace(OPTIONS, pipeline_parallel_size=2)
PROMPTS = ([5, 9, 100, 7, 31], [8, 1, 2], [77] * 20)
PARAMS = SamplingParams(max_tokens=10, seed=3, temperature=0.9, ignore_eos=True)


class Knocked(ProcessHosts):
    """Processes on whose doors strangers have knocked before the engine comes."""

    def start(self, n_stages: int) -> Sequence[StageAddress]:
        addresses = super().start(n_stages)
        for address in addresses:
            with pytest.raises(AuthenticationError):
                Client((address.host, address.port), authkey=b"not the key")
            socket.create_connection((address.host, address.port)).close()
            with socket.create_connection((address.host, address.port)) as browser:
                browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return addresses


def write_all(engine: Engine) -> list[list[Token]]:
    """Return the tokens of a text after each prompt, written at the same time, with statistics."""
    runs = [engine.submit(Request(list(ids), PARAMS, True)) for ids in PROMPTS]
    return [list(run) for run in runs]


def facts(texts: list[list[Token]]) -> list[list[object]]:
    return [
        [
            (t.id, t.logprob, t.draw, t.mass, [s.residual for s in t.stats.layers])
            for t in text
            if t.stats is not None
        ]
        for text in texts
    ]


@pytest.mark.ci
def test_texts_are_those_of_one_device_until_a_stage_is_gone() -> None:
    one = Engine.load(model_dir(), OPTIONS)
    expected = facts(write_all(one))
    one.close()
    hosts = Knocked()
    engine = Engine.load(model_dir(), IN_TWO, stage_hosts=hosts)
    found = facts(write_all(engine))
    assert found == expected
    assert all(len(text) == PARAMS.max_tokens for text in found)
    assert [(s.first_layer, s.n_layers) for s in engine.info.stages] == [(0, 4), (4, 4)]

    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Token) and event.index == 0:
            hosts.processes[0].kill()

    params = SamplingParams(max_tokens=120, seed=3, ignore_eos=True)
    engine.submit(Request([5, 9], params), on_event)
    engine._thread.join(30.0)
    machine = socket.gethostname()
    assert engine.failure is not None
    assert f"stage 1 of 2 on {machine} is gone: its process has ended" in engine.failure
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.reason, done.message) == ("error", engine.failure)
    assert hosts.losses == [engine.failure.removeprefix("the engine failed: ")]
    assert hosts.have_ended


def test_a_stage_that_cannot_be_loaded_is_named_with_its_machine(tmp_path: Path) -> None:
    named = f"stage 2 of 2 on {socket.gethostname()}: "
    folder = random_llama.folder("odd36")
    hosts = ThreadHosts()
    missing = replace(IN_TWO, stage_adapters=(None, "no such GPU"))
    with pytest.raises(DeviceError, match=f"^{named}no adapter matches 'no such GPU'"):
        StagedRunner.load(folder, missing, hosts=hosts)
    assert hosts.have_ended

    class Changed(ThreadHosts):
        """Hosts that have another model at the same path."""

        def start(self, n_stages: int) -> Sequence[StageAddress]:
            config = json.loads((copy / "config.json").read_text())
            config["rms_norm_eps"] = 0.5
            (copy / "config.json").write_text(json.dumps(config))
            return super().start(n_stages)

    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    hosts = Changed()
    with pytest.raises(ModelError, match=r"^stage \d of 2 on .* is another model there"):
        StagedRunner.load(copy, IN_TWO, hosts=hosts)
    assert hosts.have_ended


def test_nobody_is_reached_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    address = StageAddress("127.0.0.1", port, b"key", "here")
    with pytest.raises(DeviceError, match=rf"stage 7 cannot be reached at 127.0.0.1:{port}"):
        StageConnection.connect("stage 7", address)


def test_steps_and_outputs_travel_as_they_are() -> None:
    sample = Sample(1, 0, 2**64 - 1, 5, 0.1, logit_bias=(TokenBias(3, 1.5),), verifies=True)
    step = Step((Row(0, 7, 5), Row(0, 8, -1)), (sample,), interventions=True)
    assert decode_step(encode_step(step)) == step
    rows = np.array([[1.5, -0.0, np.nan], [np.inf, 1e-40, 3]], np.float32)
    output = decode_output(encode_output(StageOutput((StepResult((), sent=rows.T),)), "stage 1"))
    sent = output.results[0].sent
    assert sent is not None
    assert sent.shape == (3, 2)
    assert sent.tobytes() == np.ascontiguousarray(rows.T).tobytes()
    for name in ("stage 1", "stage 2"):  # the second passes on what the first one says
        output = decode_output(encode_output(StageOutput(failure=ValueError("x")), "stage 1"))
        output = decode_output(encode_output(output, name))
        assert str(output.failure) == "stage 1: ValueError: x"


def test_a_queue_that_has_ended_gives_its_failure_for_ever() -> None:
    queue = OutputQueue()
    queue.put(StageOutput())
    queue.end(DeviceError("first"))
    queue.end(DeviceError("second"))
    assert queue.get().failure is None
    assert [str(queue.get().failure) for _ in range(3)] == ["first"] * 3
    assert not queue.empty()
