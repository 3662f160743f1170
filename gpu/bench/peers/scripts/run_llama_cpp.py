"""Runs a GGUF file with llama-cpp-python and times it; see gpu/bench/peers/peer.py for the
protocol. Uses the library's C interface, because the high-level class requires a vocabulary.

    python run_llama_cpp.py model.gguf CONTEXT [STREAMS]

CONTEXT are tokens of each of up to STREAMS sequences that share a step.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

MISSING = "not installed (pip install llama-cpp-python, built with CMAKE_ARGS=-DGGML_VULKAN=ON)"


SAMPLING = {"temperature": 0.8, "seed": 0}


def n_processors() -> int:
    """Return how many processors this process may use (`taskset`), where the system says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Model:
    """Up to `n_streams` sequences of `n_context` tokens each."""

    def __init__(self, api: Any, path: str, n_context: int, n_streams: int) -> None:
        self.api = api
        self.said: list[str] = []
        # A reference keeps ctypes from freeing it.
        self._log = api.llama_log_callback(lambda _level, text, _data: self._note(text))
        api.llama_log_set(self._log, ctypes.c_void_p(0))
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 999
        self.model = api.llama_model_load_from_file(path.encode(), params)
        settings = api.llama_context_default_params()
        settings.n_ctx = settings.n_batch = n_context * n_streams
        settings.n_seq_max = n_streams
        settings.n_threads = settings.n_threads_batch = n_processors()
        self.context = api.llama_init_from_model(self.model, settings) if self.model else None
        if not self.context:
            raise SystemExit("llama.cpp could not load the model: " + "".join(self.said[-3:]))
        self.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.greedy = api.llama_sampler_init_greedy()
        self.batch = api.llama_batch_init(n_context * n_streams, 0, 1)

    def device(self) -> str:
        """Return the GPU that its log names and the number of layers on it; else the CPU."""
        used = [line.strip() for line in self.said if "using device" in line]
        if not used:
            return "CPU"
        offloaded = [line.strip() for line in self.said if "layers to GPU" in line]
        placed = [line.rpartition(": ")[2] for line in (used[0], *offloaded[-1:])]
        return ", ".join(text.removeprefix("using device ") for text in placed)

    def begin(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def run(self, ids: list[int], first: int, every: bool = False) -> None:
        """Run tokens from position `first` on; return logits of the last one, or of `every` one."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, id in enumerate(ids):
            batch.token[i], batch.pos[i] = id, first + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = every or i + 1 == len(ids)
        self._decode()

    def run_together(self, runs: list[tuple[list[int], int]]) -> list[int]:
        """Run the next tokens of each sequence, given with the position of the first, in one batch;
        return the row of each sequence's last token."""
        batch, n, last = self.batch, 0, []
        for sequence, (ids, first) in enumerate(runs):
            for i, id in enumerate(ids):
                batch.token[n], batch.pos[n] = id, first + i
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
                batch.logits[n] = i + 1 == len(ids)
                n += 1
            last.append(n - 1)
        batch.n_tokens = n
        self._decode()
        return last

    def choose(self, row: int = -1, sampler: Any = None) -> int:
        id: int = self.api.llama_sampler_sample(sampler or self.greedy, self.context, row)
        return id

    def sampler(self) -> Any:
        """Return a sampler with the temperature of `SAMPLING`; to be freed."""
        chain = self.api.llama_sampler_chain_init(self.api.llama_sampler_chain_default_params())
        self.api.llama_sampler_chain_add(
            chain, self.api.llama_sampler_init_temp(SAMPLING["temperature"])
        )
        self.api.llama_sampler_chain_add(chain, self.api.llama_sampler_init_dist(SAMPLING["seed"]))
        return chain

    def logits(self, i: int) -> list[float]:
        found: list[float] = self.api.llama_get_logits_ith(self.context, i)[: self.n_vocab]
        return found

    def _decode(self) -> None:
        if status := self.api.llama_decode(self.context, self.batch):
            raise SystemExit(f"llama_decode failed with {status}: " + "".join(self.said[-3:]))

    def _note(self, text: bytes) -> None:
        self.said.append(text.decode(errors="replace"))


def timed(model: Model, prompt: list[int], n_tokens: int) -> dict[str, float]:
    model.begin()
    began = time.perf_counter()
    model.run(prompt, 0)
    id = model.choose()
    prefilled = time.perf_counter()
    for i in range(n_tokens):
        model.run([id], len(prompt) + i)
        id = model.choose()
    return {"prefill_s": prefilled - began, "decode_s": time.perf_counter() - prefilled}


def streams(model: Model, prompts: list[list[int]], n_tokens: int) -> dict[str, Any]:
    """Write `n_tokens` after each prompt, one of each a step."""
    model.begin()
    samplers = [model.sampler() for _ in prompts]
    times: list[list[float]] = [[] for _ in prompts]
    processor, asked = time.process_time(), time.perf_counter()
    runs = [(ids, 0) for ids in prompts]
    for _ in range(n_tokens):
        last = model.run_together(runs)
        for stream, (row, (ids, first)) in enumerate(zip(last, runs, strict=True)):
            runs[stream] = ([model.choose(row, samplers[stream])], first + len(ids))
            times[stream].append(time.perf_counter())
    cpu_s = time.process_time() - processor
    for sampler in samplers:
        model.api.llama_sampler_free(sampler)
    return {"asked": [asked] * len(prompts), "times": times, "cpu_s": cpu_s}


def answer(model: Model, request: dict[str, Any]) -> dict[str, Any]:
    if "prompts" in request:
        return streams(model, request["prompts"], request["tokens"])
    if "logits" not in request:
        return timed(model, request["prompt"], request["tokens"])
    model.begin()
    model.run(request["logits"], 0, every=True)
    return {"logits": [model.logits(i) for i in range(len(request["logits"]))]}


def main(path: str, n_context: str, n_streams: str = "1") -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the library's output out of the answers

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    # Without this, software devices, which report the type CPU, are skipped.
    os.environ.setdefault("GGML_VK_VISIBLE_DEVICES", "0")
    try:
        import llama_cpp
    except ModuleNotFoundError:
        say({"missing": MISSING})
        return
    model = Model(llama_cpp, path, int(n_context), int(n_streams))
    say({"device": f"{model.device()}, llama-cpp-python {llama_cpp.__version__}"})
    for line in sys.stdin:
        say(answer(model, json.loads(line)))


if __name__ == "__main__":
    main(*sys.argv[1:])
