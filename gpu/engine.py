"""The engine: one thread that owns the device, runs steps and tells each run what happens.

Callers only put commands in a queue. The thread submits steps ahead of the ones it reads
(`Runner.in_flight`), so the device does not wait for Python between tokens; changed settings
therefore act on the first token not submitted yet, and the caller is told which one that is.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpu.checkpoint import Checkpoint
from gpu.config import GenerationDefaults, ModelConfig
from gpu.errors import (
    ContextExceeded,
    DeviceError,
    EngineClosed,
    EngineError,
    InvalidRequest,
    ModelError,
    QueueFull,
)
from gpu.events import Done, Event, Token
from gpu.sampling import SamplingParams
from gpu.scheduler import Scheduled, Scheduler
from gpu.sequence import Sequence
from gpu.step import DeviceInfo, Floats, Memory, Row, Runner, RunnerLimits, Sample, Step
from gpu.tokenizer import Tokenizer

BACKENDS = ("wgpu", "torch")
DTYPES = ("f16", "f32")
log = logging.getLogger(__name__)

PREFILL_IN_FLIGHT = 2
"""Steps with a prompt's piece on the device at once: short, so that a cancel acts soon."""

Progress = Callable[[float, str], None]


class EngineInfo(msgspec.Struct, frozen=True):
    """What is running, for people. `parameters`: weights, tied ones once. `defaults`: the sampling
    settings the model's makers recommend. `dispatches_per_token`: of a decode step."""

    name: str
    dtype: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    parameters: int
    device: DeviceInfo
    limits: RunnerLimits
    memory: Memory
    queue: int
    in_flight: int
    dispatches_per_token: int
    defaults: SamplingParams


class Run:
    """A request on its way. Iterating yields its tokens until it ends."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.sequence: Sequence | None = None
        self.done: Done | None = None

    def update(self, *, capture: bool | None = None, **changes: Any) -> int:
        """Change sampling settings from the next token that is not submitted yet on; returns its
        index. Raises InvalidRequest for a bad value, and when the run has ended."""
        return int(self._engine.call(_Update(self, changes, capture)))

    def cancel(self) -> None:
        """End the run; what was written stays. Nothing happens when it has ended already."""
        self._engine.post(_Cancel(self))

    def __iter__(self) -> Iterator[Token]:
        while self.done is None:
            event = self._events.get()
            if isinstance(event, Token):
                yield event
            elif isinstance(event, Done):
                self.done = event
        if self.done.reason == "error":
            raise EngineError(self.done.message)


@dataclass(frozen=True, slots=True)
class _Start:
    run: Run
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class _Update:
    run: Run
    changes: dict[str, Any]
    capture: bool | None


@dataclass(frozen=True, slots=True)
class _Cancel:
    run: Run


@dataclass(frozen=True, slots=True)
class _Logits:
    ids: list[int]


class _Close:
    pass


_Command = _Start | _Update | _Cancel | _Logits | _Close


class Engine:
    """A loaded model. `load` opens one; `submit` and `generate` may be called by any thread."""

    def __init__(
        self,
        make_runner: Callable[[], Runner],
        tokenizer: Tokenizer,
        *,
        name: str = "model",
        dtype: str = "f16",
        parameters: int = 0,
        defaults: SamplingParams | None = None,
        queue_size: int = 16,
    ) -> None:
        self.tokenizer = tokenizer
        self._commands: queue.Queue[tuple[_Command, Future[Any]]] = queue.Queue()
        self._in_flight: deque[Scheduled] = deque()
        self._alive = 0
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._queue_size = queue_size
        ready: Future[Runner] = Future()
        self._thread = threading.Thread(
            target=self._main, args=(make_runner, ready), name="tokenglass engine", daemon=True
        )
        self._thread.start()
        self._runner = ready.result()
        self.config = self._runner.config
        self._eos_ids = self.config.eos_ids or tokenizer.eos_ids
        self.info = self._describe(name, dtype, parameters, defaults or SamplingParams())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        dtype: str = "f16",
        backend: str = "wgpu",
        adapter: str | None = None,
        context: int | None = None,
        kv_bytes: int | None = None,
        n_slots: int = 4,
        queue: int = 16,
        progress: Progress = lambda fraction, message: None,
    ) -> Engine:
        """Load a model folder (config.json, *.safetensors, tokenizer.json).

        Raises ModelError for a folder that cannot be run and DeviceError for a device that cannot
        run it, before anything is half loaded. `progress` gets a fraction and a message, also from
        the engine's thread.
        """
        folder = Path(path)
        _check_choice("dtype", dtype, DTYPES)
        _check_choice("backend", backend, BACKENDS)
        progress(0.0, f"reading {folder.name}")
        config = ModelConfig.from_folder(folder)
        tokenizer = Tokenizer.load(folder)
        parameters = Checkpoint.open(folder).parameters(config.tie_embeddings)
        return cls(
            lambda: _open_runner(
                backend,
                folder,
                adapter,
                progress,
                dtype=dtype,
                context=context,
                kv_bytes=kv_bytes,
                n_slots=n_slots,
            ),
            tokenizer,
            name=folder.resolve().name,
            dtype=dtype,
            parameters=parameters,
            defaults=_defaults(GenerationDefaults.from_folder(folder)),
            queue_size=queue,
        )

    # ---- for callers ------------------------------------------------------------------------

    def submit(
        self,
        ids: list[int],
        params: SamplingParams | None = None,
        *,
        capture: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> Run:
        """Start a run and return at once. `on_event` is called on the engine's thread and must not
        block; without it the run is iterated.

        Raises InvalidRequest, ContextExceeded, QueueFull, EngineClosed.
        """
        params = (params or self.info.defaults).validate()
        self._check_ids(ids)
        if len(ids) >= self._runner.limits.context:
            raise ContextExceeded(len(ids), self._runner.limits.context)
        with self._lock:
            most = self._runner.limits.n_slots + self._queue_size
            if self._alive >= most:
                raise QueueFull(
                    f"{self._alive} requests are running or waiting, which is the most this "
                    "server takes; try again in a moment"
                )
            self._alive += 1
        run = Run(self)
        sink = on_event or run._events.put

        def tell(event: Event) -> None:
            sink(event)
            if isinstance(event, Done):
                run.done = event if on_event else None
                with self._lock:
                    self._alive -= 1

        run.sequence = Sequence(
            list(ids),
            params,
            self.tokenizer,
            self._eos_ids,
            self._runner.limits.context,
            capture=capture,
            on_event=tell,
        )
        self.post(_Start(run, run.sequence))
        return run

    def generate(
        self, ids: list[int], params: SamplingParams | None = None, *, capture: bool = False
    ) -> Run:
        """Start a run whose tokens are iterated."""
        return self.submit(ids, params, capture=capture)

    def logits(self, ids: list[int]) -> Floats:
        """float32 (len(ids), vocab_size): the raw logits after every token. For verification; runs
        when nothing else does."""
        self._check_ids(ids)
        if len(ids) > self._runner.limits.context:
            raise ContextExceeded(len(ids), self._runner.limits.context)
        result: Floats = self.call(_Logits(list(ids)))
        return result

    def close(self) -> None:
        """End all runs and let go of the device. Safe to call twice."""
        if self._thread.is_alive():
            self._commands.put((_Close(), Future()))
            self._thread.join()

    @property
    def failure(self) -> str | None:
        """Why the engine stopped by itself; None while it has not."""
        return self._failure

    def post(self, command: Any) -> Future[Any]:
        """Queue a command for the engine's thread. Raises EngineClosed when there is none."""
        if not self._thread.is_alive():
            raise EngineClosed(self._failure or "the engine was closed; load it again")
        future: Future[Any] = Future()
        self._commands.put((command, future))
        return future

    def call(self, command: Any) -> Any:
        return self.post(command).result()

    def _check_ids(self, ids: list[int]) -> None:
        if not ids:
            raise InvalidRequest("the prompt is empty; give at least one token", "prompt")
        vocab = self.config.vocab_size
        for i, id in enumerate(ids):
            if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab:
                raise InvalidRequest(
                    f"token {i} of the prompt is {id!r}, but ids go from 0 to {vocab - 1}", "prompt"
                )

    def _describe(
        self, name: str, dtype: str, parameters: int, defaults: SamplingParams
    ) -> EngineInfo:
        config, runner = self.config, self._runner
        return EngineInfo(
            name=name,
            dtype=dtype,
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            parameters=parameters,
            device=runner.device,
            limits=runner.limits,
            memory=runner.memory,
            queue=self._queue_size,
            in_flight=runner.in_flight,
            dispatches_per_token=runner.dispatches_per_token,
            defaults=defaults,
        )

    # ---- the engine's thread ----------------------------------------------------------------

    def _main(self, make_runner: Callable[[], Runner], ready: Future[Runner]) -> None:
        try:
            runner = make_runner()
        except BaseException as error:
            ready.set_exception(error)
            return
        self._scheduler = Scheduler(runner.limits)
        ready.set_result(runner)
        try:
            while self._obey(runner):
                self._advance(runner)
            self._end_all("cancelled", "")
        except Exception as error:
            self._failure = f"the engine failed: {error}"
            log.exception("the engine failed")
            self._end_all("error", self._failure)
        finally:
            self._refuse_waiting()
            runner.close()

    def _obey(self, runner: Runner) -> bool:
        """Carry out the commands that wait; False: close. Sleeps when there is nothing to do."""
        scheduler = self._scheduler
        while True:
            idle = not (self._in_flight or scheduler.active or scheduler.waiting)
            try:
                command, future = self._commands.get(block=idle)
            except queue.Empty:
                return True
            if isinstance(command, _Close):
                return False
            try:
                future.set_result(self._carry_out(runner, command))
            except EngineError as error:
                future.set_exception(error)

    def _carry_out(self, runner: Runner, command: _Command) -> Any:
        match command:
            case _Start(sequence=sequence):
                self._scheduler.add(sequence)
            case _Cancel(run=run) if run.sequence is not None:
                run.sequence.cancel()
                self._scheduler.release(run.sequence)
            case _Update(run=run, changes=changes, capture=capture):
                return self._update(run, changes, capture)
            case _Logits(ids=ids):
                return self._logits(runner, ids)
        return None

    def _update(self, run: Run, changes: dict[str, Any], capture: bool | None) -> int:
        sequence = run.sequence
        if sequence is None or sequence.finished:
            raise InvalidRequest("this run has ended; settings act on the next one", "id")
        checked = sequence.params.updated(changes)
        self._scheduler.check_max_tokens(sequence, checked.max_tokens)
        index = sequence.update(changes, capture)
        if sequence.finished:
            self._scheduler.release(sequence)
        return index

    def _advance(self, runner: Runner) -> None:
        """Submit while there is room, then read the oldest step."""
        for sequence in self._scheduler.admit():
            runner.begin_slot(sequence.slot, np.array(sequence.prompt, np.uint32))
            sequence.started()
        while len(self._in_flight) < runner.in_flight:
            room = sum(s.chunk is not None for s in self._in_flight) < PREFILL_IN_FLIGHT
            scheduled = self._scheduler.next_step(prefill=room)
            if scheduled is None:
                break
            for sequence in self._scheduler.new_blocks:
                runner.set_blocks(sequence.slot, sequence.blocks)
            self._scheduler.new_blocks.clear()
            runner.submit(scheduled.step)
            self._in_flight.append(scheduled)
        if self._in_flight:
            self._collect(runner)

    def _collect(self, runner: Runner) -> None:
        scheduled = self._in_flight.popleft()
        result = runner.collect()
        if chunk := scheduled.chunk:
            ms = result.gpu_ms if result.gpu_ms is not None else result.wait_ms
            self._scheduler.learn(scheduled.step, ms)
            if not chunk.sequence.finished:
                chunk.sequence.prefilled(chunk.first, chunk.n, chunk.row, result)
        for sequence, row, sampled in zip(
            scheduled.samplers, scheduled.rows, result.samples, strict=True
        ):
            if not sequence.finished:
                sequence.wrote(sampled, row, result)
                if sequence.finished:
                    self._scheduler.release(sequence)

    def _drain(self, runner: Runner) -> None:
        while self._in_flight:
            self._collect(runner)

    def _logits(self, runner: Runner, ids: list[int]) -> Floats:
        """Runs the ids through blocks borrowed from the cache, a few rows at a time."""
        self._drain(runner)
        scheduler, limits = self._scheduler, runner.limits
        blocks = scheduler.allocator.take(-(-len(ids) // limits.block_tokens))
        slots = {s.slot for s in scheduler.active}
        slot = next((s for s in range(limits.n_slots) if s not in slots), None)
        if blocks is None or slot is None:
            if blocks:
                scheduler.allocator.give_back(blocks)
            raise QueueFull("no KV cache is free for verification; wait for the runs to end")
        runner.set_blocks(slot, blocks)
        try:
            parts = [
                runner.logits(_verification_step(slot, ids, first, limits.max_samples))
                for first in range(0, len(ids), limits.max_samples)
            ]
        finally:
            scheduler.allocator.give_back(blocks)
        return np.concatenate(parts)

    def _end_all(self, reason: Any, message: str) -> None:
        for sequence in [*self._scheduler.active, *self._scheduler.waiting]:
            sequence.finish(reason, message)

    def _refuse_waiting(self) -> None:
        """Commands that came after the end."""
        while not self._commands.empty():
            command, future = self._commands.get()
            if isinstance(command, _Start):
                command.sequence.finish("error", self._failure or "the engine was closed")
            future.set_exception(EngineClosed(self._failure or "the engine was closed"))


def _verification_step(slot: int, ids: list[int], first: int, n: int) -> Step:
    rows = tuple(Row(slot, first + i, id) for i, id in enumerate(ids[first : first + n]))
    samples = tuple(Sample(i, slot, 0, 0, 0.0, 0, 1.0, 0.0, 1.0) for i in range(len(rows)))
    return Step(rows, samples)


def _open_runner(
    backend: str, folder: Path, adapter: str | None, progress: Progress, **options: Any
) -> Runner:
    """Imported here, so that neither backend needs the other's packages."""
    if backend == "torch":
        try:
            from gpu.torch_runner import TorchRunner
        except ModuleNotFoundError as error:
            raise DeviceError(
                f"--backend torch needs PyTorch ({error}); install it with "
                "`pip install 'tokenglass[torch]'`"
            ) from error
        runner: Runner = TorchRunner.load(folder, progress=progress, **options)
        return runner
    from gpu.wgpu_runner import WgpuRunner

    return WgpuRunner.load(folder, adapter=adapter, progress=progress, **options)


def _defaults(recommended: GenerationDefaults) -> SamplingParams:
    """The recommended settings over ours; those out of range are left out by `validate`."""
    values = {
        name: value
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        if (value := getattr(recommended, name)) is not None
    }
    return SamplingParams(**values)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ModelError(f"{name} {value!r} is not supported; supported: {', '.join(choices)}")
