"""The engine's face: load a model, start runs, change them while they write.

Callers only put commands in a queue (see `gpu.engine.thread`). Steps are submitted ahead of the
ones that are read, so changed settings act on the first token that is not submitted yet, and the
caller is told which one that is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from collections.abc import Sequence as Several
from concurrent.futures import Future
from pathlib import Path

from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint
from gpu.config import GenerationDefaults, ModelConfig
from gpu.engine.info import describe
from gpu.engine.opening import (
    BACKENDS,
    DTYPES,
    Progress,
    check_choice,
    check_expert_slots,
    check_products,
    open_runner,
    recommended_settings,
)
from gpu.engine.run import Events, Run
from gpu.engine.sequence import Sequence
from gpu.engine.thread import EngineThread, Forget, Inspect, Logits, Start
from gpu.errors import (
    ContextExceeded,
    EngineError,
    InvalidRequest,
    QueueFull,
)
from gpu.events import Event
from gpu.inspection import Answer, Question
from gpu.interventions import (
    MAX_TEXT_TOKENS,
    NO_INTERVENTIONS,
    Encoded,
    Interventions,
    ReachedFrom,
    encode_interventions,
    encode_reached,
    expect_in_turn,
)
from gpu.kv.formats import kv_format
from gpu.runner import Runner
from gpu.sampling import SamplingParams
from gpu.script import ChangeAt, checked_script, encoded_reaches
from gpu.step import Floats
from gpu.text.token_table import TokenizerLike
from gpu.text.tokenizer import Tokenizer


class Engine:
    """A loaded model. `load` opens one; every method may be called by any thread."""

    def __init__(
        self,
        make_runner: Callable[[], Runner],
        tokenizer: TokenizerLike,
        *,
        name: str = "model",
        dtype: str = "f16",
        kv_dtype: str | None = None,
        parameters: int = 0,
        defaults: SamplingParams | None = None,
        queue_size: int = 16,
        warm_up: bool = False,
        prefix_cache: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self._alive = 0
        self._lock = threading.Lock()
        self._queue_size = queue_size
        self._thread = EngineThread(
            make_runner,
            lambda runner: describe(
                runner,
                name=name,
                dtype=dtype,
                kv_dtype=kv_dtype or FORMATS[dtype].kv,
                parameters=parameters,
                defaults=defaults or SamplingParams(),
                queue=queue_size,
                eos_ids=_end_ids(runner.config, tokenizer),
            ),
            tokenizer.encode,
            warm_up=warm_up,
            prefix_cache=prefix_cache,
            end_ids=tokenizer.eos_ids,
        )
        self._limits = self._thread.runner.limits
        self.config = self._thread.runner.config
        self.info = self._thread.info

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        name: str | None = None,
        dtype: str = "f16",
        kv_dtype: str | None = None,
        backend: str = "wgpu",
        adapter: str | None = None,
        context: int | None = None,
        kv_bytes: int | None = None,
        n_slots: int = 4,
        loras: Mapping[str, str | Path] | None = None,
        queue: int = 16,
        prefix_cache: bool = True,
        warm_up: bool = False,
        probe: bool = False,
        keep_bytes: int = 0,
        expert_slots: int | None = None,
        products: str = "auto",
        tokenizer: TokenizerLike | None = None,
        progress: Progress = lambda fraction, message: None,
    ) -> Engine:
        """Load a model folder (config.json, *.safetensors, and tokenizer.json or tokenizer.model)
        or a GGUF file.

        name          what to call the model; that of its folder or file if not given
        kv_dtype      how keys and values are stored, of `gpu.kv.formats.KV_FORMATS`; None: f32 with
                      weights in f32, else f16
        loras         LoRA adapters that runs can switch on, folders as PEFT saves them by names
        prefix_cache  keep what was computed: a prompt that begins like an earlier text is computed
                      from where they part
        warm_up       compile what the first requests will need while there are none
        probe         run the kernels that are fastest on the adapter: measured now (a few
                      seconds) if they never were, then kept in the user's cache folder
        keep_bytes    keep weights as q8 and q4 pack them for the next start, in files in the user's
                      cache folder that take so much together at most; 0: neither write nor read any
        expert_slots  of each layer's experts, so many lie on the GPU at a time; the others wait in
                      the host's memory and are brought when a token is given to them, in the place
                      of those used least recently; None: all lie on the GPU
        products      what products with q8 and q4 weights are given: "float", or "bytes", blocks of
                      32 rounded with a scale of their own; "auto": with `probe` what was measured
                      to be faster, else "float"
        tokenizer     the model's, if it is open already; else that of the folder or file
        progress      gets a fraction and a message, also from the engine's thread

        Raises ModelError for a model that cannot be run and DeviceError for a device that cannot
        run it, before anything is half loaded.
        """
        folder = Path(path)
        check_choice("dtype", dtype, DTYPES)
        if kv_dtype is not None:
            kv_format(kv_dtype)
        check_choice("backend", backend, BACKENDS)
        progress(0.0, f"reading {folder.name}")
        config = ModelConfig.from_folder(folder)
        if expert_slots is not None:
            check_expert_slots(expert_slots, backend)
        check_products(products, backend)
        if tokenizer is None:
            tokenizer = Tokenizer.load(folder)
        parameters = Checkpoint.open(folder).parameters(config.tie_embeddings)

        def make_runner() -> Runner:
            return open_runner(
                backend,
                folder,
                adapter,
                probe,
                keep_bytes,
                expert_slots,
                products,
                progress=progress,
                dtype=dtype,
                kv_dtype=kv_dtype,
                context=context,
                kv_bytes=kv_bytes,
                n_slots=n_slots,
                loras=loras,
            )

        return cls(
            make_runner,
            tokenizer,
            name=name or folder.resolve().name,
            dtype=dtype,
            kv_dtype=kv_dtype,
            parameters=parameters,
            defaults=recommended_settings(GenerationDefaults.from_folder(folder)),
            queue_size=queue,
            warm_up=warm_up,
            prefix_cache=prefix_cache,
        )

    def submit(
        self,
        ids: list[int],
        params: SamplingParams | None = None,
        *,
        capture: bool = False,
        script: Several[ChangeAt] = (),
        reach: Interventions = NO_INTERVENTIONS,
        reached: Several[ReachedFrom] = (),
        on_event: Callable[[Event], None] | None = None,
    ) -> Run:
        """Start a run and return at once. `on_event` is called on the engine's thread and must not
        block; without it the run is iterated. `script`: changes of its settings, each to act from a
        token on that is known already, as in a run that is written again. `reach`: interventions
        from its beginning on, see `gpu.interventions`. `reached`: what all of `ids` but the last
        were computed under, where they are the text of an earlier run that goes on; `reach` then
        begins with the last.

        Raises InvalidRequest, ContextExceeded, QueueFull, EngineClosed.
        """
        params = (params or self.info.defaults).validate()
        self._check_ids(ids)
        if len(ids) >= self._limits.context:
            raise ContextExceeded(len(ids), self._limits.context)
        changes = checked_script(script, params)
        later = encoded_reaches(changes, reach, self._encoded)
        expect_in_turn(reached, reach, len(ids) - 1)
        before = encode_reached(reached, lambda one: self._encoded(one, len(ids), "reached"))
        reaches = (self._encoded(reach, len(ids)), *later)
        events = Events(on_event, self._one_less)
        sequence = Sequence(
            list(ids),
            params,
            self.tokenizer,
            self.info.eos_ids,
            self._limits.context,
            capture=capture,
            script=changes,
            reaches=reaches,
            reached=before,
            on_event=events,
        )
        self._one_more()
        try:
            self._thread.post(Start(sequence))
        except EngineError:
            self._one_less()
            raise
        return Run(self._thread, sequence, events, self._encoded)

    def generate(
        self,
        ids: list[int],
        params: SamplingParams | None = None,
        *,
        capture: bool = False,
        reach: Interventions = NO_INTERVENTIONS,
    ) -> Run:
        """Start a run whose tokens are iterated."""
        return self.submit(ids, params, capture=capture, reach=reach)

    def logits(self, ids: list[int], reached: Several[ReachedFrom] = ()) -> Floats:
        """float32 (len(ids), vocab_size): the raw logits after every token, under the
        interventions of `reached`. For verification; other runs wait meanwhile."""
        self._check_ids(ids)
        if len(ids) > self._limits.context:
            raise ContextExceeded(len(ids), self._limits.context)
        result: Floats = self._thread.post(Logits(list(ids), tuple(reached))).result()
        return result

    def inspect(self, question: Question, asker: Hashable = None) -> Future[Answer]:
        """Ask about tokens of a run, see `gpu.inspection`; runs go on meanwhile, between pieces of
        the work, and get half of the time at least. Questions of different askers take turns. The
        answer's info["ms"] is how long that took. The future raises InvalidRequest for a question
        that cannot be answered, and QueueFull while the KV cache has no room for it or too many
        wait.

        Raises EngineClosed.
        """
        return self._thread.post(Inspect(question, asker))

    def forget(self, asker: Hashable) -> None:
        """End the questions of an asker: their futures raise InvalidRequest.

        Raises EngineClosed.
        """
        self._thread.post(Forget(asker))

    def close(self) -> None:
        """End all runs and let go of the device. Safe to call twice."""
        self._thread.close()

    @property
    def failure(self) -> str | None:
        """Why the engine stopped by itself; None while it has not."""
        return self._thread.failure

    @property
    def busy_since(self) -> float | None:
        """`time.monotonic` when the present round of steps began; None while there is nothing to
        do. A value that stays the same for minutes means that the device or its driver hangs."""
        return self._thread.busy_since

    def _encoded(
        self, reach: Interventions, n_prompt: int | None = None, param: str = "reach"
    ) -> Encoded:
        most = min(MAX_TEXT_TOKENS, self._limits.context)
        return encode_interventions(
            reach,
            self.config,
            self.tokenizer.encode,
            param=param,
            n_prompt=n_prompt,
            most=most,
            loras=[lora.name for lora in self.info.loras],
        )

    def _one_more(self) -> None:
        most = self._limits.n_slots + self._queue_size
        with self._lock:
            if self._alive >= most:
                raise QueueFull(
                    f"{self._alive} requests are running or waiting, which is the most this "
                    "server takes; try again in a moment"
                )
            self._alive += 1

    def _one_less(self) -> None:
        with self._lock:
            self._alive -= 1

    def _check_ids(self, ids: list[int]) -> None:
        if not ids:
            raise InvalidRequest("the prompt is empty; give at least one token", "prompt")
        vocab = self.config.vocab_size
        for i, id in enumerate(ids):
            if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocab:
                raise InvalidRequest(
                    f"token {i} of the prompt is {id!r}, but ids go from 0 to {vocab - 1}", "prompt"
                )


def _end_ids(config: ModelConfig, tokenizer: TokenizerLike) -> tuple[int, ...]:
    """The tokens that end a text, as the model or its tokenizer says."""
    return tuple(dict.fromkeys((*config.eos_ids, *tokenizer.eos_ids)))
