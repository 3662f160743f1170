"""Public interface of the engine: load a model, start runs, change them while they generate.

Callers only put commands in a queue (see `gpu.engine.thread`). Steps are submitted ahead of the
ones that are read, so changed settings act on the first token that is not submitted yet; the caller
is told its index.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Several
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu.checkpoint.open_model import open_model
from gpu.config import GenerationDefaults, ModelConfig
from gpu.engine.backends import (
    Progress,
    check_options,
    open_draft,
    open_encoders,
    open_runner,
    recommended_settings,
    with_dtype_of_files,
)
from gpu.engine.info import describe
from gpu.engine.run import EventReceiver, Run
from gpu.engine.sequence import Sequence
from gpu.engine.thread import (
    CancelQuestions,
    EngineThread,
    Inspect,
    Logits,
    MakeDraft,
    Start,
)
from gpu.engine.validation import RequestValidator
from gpu.errors import ContextExceeded, EngineError, InvalidRequest
from gpu.events import Event
from gpu.info import EngineStats
from gpu.inspection.requests import Answer, Question, Waterfall
from gpu.interventions.messages import NO_INTERVENTIONS, Interventions, InterventionSpan
from gpu.kv.can_shift import expect_shiftable, why_not_shiftable
from gpu.kv.context_shift import LEAST_SHIFTABLE, sliding_context
from gpu.load_options import AUTO_OPTIONS, DEFAULT_OPTIONS, LoadOptions
from gpu.places import Places
from gpu.request import Request
from gpu.runner import Runner
from gpu.sampling_params import SamplingParams
from gpu.stage_hosts import StageHosts
from gpu.step import Floats
from gpu.text.grammar_matcher import GrammarCompiler
from gpu.text.grammar_vocabulary import GrammarVocabulary
from gpu.text.same_vocabulary import expect_same_vocabulary
from gpu.text.token_table import TokenizerLike
from gpu.text.tokenizer import Tokenizer


class Engine:
    """A loaded model. `load` opens one; every method may be called by any thread."""

    def __init__(
        self,
        make_runner: Callable[[], Runner],
        tokenizer: TokenizerLike,
        options: LoadOptions = DEFAULT_OPTIONS,
        *,
        name: str = "model",
        parameters: int = 0,
        defaults: SamplingParams | None = None,
        recommended: bool = True,
        make_draft: MakeDraft | None = None,
    ) -> None:
        """`make_runner` is called on the engine's thread, which owns the device, and so is
        `make_draft`, which opens the draft model's runner beside it. `parameters`: number of
        weights. `defaults`: sampling settings that the model's makers recommend, or others if not
        `recommended`."""
        self.tokenizer = tokenizer
        self._thread = EngineThread(
            make_runner,
            lambda runner, draft: describe(
                runner,
                options,
                draft=draft,
                name=name,
                parameters=parameters,
                defaults=defaults or SamplingParams(),
                recommended=recommended,
                eos_ids=_end_ids(runner.config, tokenizer),
            ),
            tokenizer.encode,
            options,
            make_draft=make_draft,
            make_encoders=open_encoders(options),
            end_ids=tokenizer.eos_ids,
        )
        self._limits = self._thread.runner.limits
        self._places: Places[Run] = Places(
            self._limits.slots + options.queue,
            "requests are running or waiting, which is the most this server takes",
        )
        self.config = config = self._thread.runner.config
        self.info = self._thread.info
        self._grammars = GrammarCompiler(
            lambda: GrammarVocabulary.of(tokenizer, config.vocab_size, self.info.model.eos_ids)
        )
        self._cache_reuse = options.cache_reuse
        self._validator = RequestValidator(
            self.config,
            self._limits.context,
            [lora.name for lora in self.info.model.loras],
            tokenizer.encode,
            why_not_shiftable(config),
            options.prefix_cache,
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: LoadOptions = AUTO_OPTIONS,
        *,
        name: str | None = None,
        tokenizer: TokenizerLike | None = None,
        card: GenerationDefaults | None = None,
        progress: Progress = lambda fraction, message: None,
        stage_hosts: StageHosts | None = None,
        **settings: Any,
    ) -> Engine:
        """Load a model folder (config.json, *.safetensors, and tokenizer.json or tokenizer.model)
        or a GGUF file.

        name         of the model; that of its folder or file if None
        tokenizer    the model's if it is open already; read from the folder or file if None
        card         sampling settings of the model's card, for files that recommend none
        progress     gets a fraction and a message, also from the engine's thread
        stage_hosts  processes for the stages of a model; None: they run in this one
        settings     fields of `LoadOptions` that differ from `options`, such as `dtype="q8"`

        Raises ModelError for a model that cannot be run and DeviceError for a device that cannot
        run it, before anything is half loaded; TypeError for a setting that there is none of.
        """
        folder, options = Path(path), replace(options, **settings)
        check_options(options)
        progress(0.0, f"reading {folder.name}")
        config, checkpoint = open_model(folder)
        options = with_dtype_of_files(options, config, checkpoint)
        expect_shiftable(config, options.cache_reuse)
        if tokenizer is None:
            tokenizer = Tokenizer.load(folder)
            if options.draft is not None:
                expect_same_vocabulary(tokenizer, options.draft)

        def make_draft(target: Runner) -> Runner:
            assert options.draft is not None
            return open_draft(options.draft, options, target, progress)

        found = GenerationDefaults.from_folder(folder).or_those_of(card)
        return cls(
            lambda: open_runner(folder, options, progress, stage_hosts),
            tokenizer,
            options,
            name=name or folder.resolve().name,
            parameters=checkpoint.parameters(config.tie_embeddings),
            defaults=recommended_settings(found),
            recommended=found.says_how_to_draw,
            make_draft=make_draft if options.draft is not None else None,
        )

    def submit(self, request: Request, on_event: Callable[[Event], None] | None = None) -> Run:
        """Start a run and return at once. `on_event` is called on the engine's thread and must not
        block; without it, iterate over the run.

        A grammar is compiled on this thread, and one that somebody made to take long takes long:
        check those of strangers first. Raises InvalidRequest, ContextExceeded, QueueFull,
        EngineClosed.
        """
        interventions = self._validator.validate(request)
        grammar = None
        if request.grammar is not None:
            after_written = request.grammar.after(request.n_written)
            grammar = self._grammars.matcher(after_written, request.ids)
        events = EventReceiver(on_event, lambda: self._places.release(run))
        sequence = Sequence(
            request,
            self.tokenizer,
            self.info.model.eos_ids,
            self._context_of(request),
            interventions=interventions,
            grammar=grammar,
            cache_reuse=(self._cache_reuse if request.cache_reuse is None else request.cache_reuse),
            on_event=events,
        )
        run = Run(self._thread, sequence, events, self._validator.encode)
        try:
            self._places.take(run)
            self._thread.post(Start(sequence))
        except EngineError:
            self._places.release(run)
            raise
        return run

    def _context_of(self, request: Request) -> int:
        """Return the tokens that a run may have in the cache."""
        limits, n_keep = self._limits, request.n_keep
        if n_keep is None:
            return limits.context
        context = sliding_context(limits.context, n_keep, limits.windows, limits.n_blocks)
        if not context:
            raise InvalidRequest(
                f"the KV cache of {limits.n_blocks} blocks is too small to slide: {n_keep} tokens "
                f"stay, and {LEAST_SHIFTABLE} others must have room; use more --kv-memory",
                "truncation",
            )
        return context

    def generate(
        self,
        ids: list[int],
        params: SamplingParams | None = None,
        *,
        capture: bool = False,
        interventions: Interventions = NO_INTERVENTIONS,
    ) -> Run:
        """Start a run whose tokens are iterated. `params`: the model's defaults if None."""
        params = params or self.info.defaults
        return self.submit(Request(ids, params, capture, interventions=interventions))

    def logits(self, ids: list[int], spans: Several[InterventionSpan] = ()) -> Floats:
        """Return float32 (len(ids), vocab_size): the raw logits after every token, under the
        interventions of `spans`. For verification; other runs wait meanwhile."""
        self._validator.check_ids(ids)
        if len(ids) > self._limits.context:
            raise ContextExceeded(len(ids), self._limits.context)
        result: Floats = self._thread.post(Logits(list(ids), tuple(spans))).result()
        return result

    def inspect(self, question: Question, asker: Hashable = None) -> Future[Answer]:
        """Ask about tokens of a run (`gpu.inspection.requests`). Runs continue between pieces of
        the work and get at least half of the time; askers take turns. The answer's info["ms"] is
        the time it took. The future raises InvalidRequest for a question that cannot be answered,
        and QueueFull while the KV cache has no room for it or too many questions wait.

        Raises EngineClosed.
        """
        allowed = None
        if isinstance(question, Waterfall) and question.grammar is not None:
            upto, n_written = question.ids[: question.position + 1], question.index
            n_left = question.params.max_tokens - n_written
            allowed = self._grammars.matcher(question.grammar, upto, n_written, n_left).allowed
        return self._thread.post(Inspect(question, asker, allowed))

    def cancel_questions(self, asker: Hashable) -> None:
        """End the questions of an asker: their futures raise InvalidRequest.

        Raises EngineClosed.
        """
        self._thread.post(CancelQuestions(asker))

    def close(self) -> None:
        """End all runs and release the device. Safe to call twice."""
        self._thread.close()

    @property
    def stats(self) -> EngineStats:
        """Counts of runs, KV blocks and tokens: those now, and totals since the start."""
        return self._thread.stats()

    @property
    def failure(self) -> str | None:
        """Reason why the engine stopped by itself; None while it runs."""
        return self._thread.failure

    @property
    def busy_since(self) -> float | None:
        """`time.monotonic` at which the current round of steps began; None while there is nothing
        to do. A value that stays the same for minutes means that the device or its driver hangs."""
        return self._thread.busy_since


def _end_ids(config: ModelConfig, tokenizer: TokenizerLike) -> tuple[int, ...]:
    """Return the tokens that end a text, according to the model or its tokenizer."""
    return tuple(dict.fromkeys((*config.eos_ids, *tokenizer.eos_ids)))
