"""Runs an ONNX file with onnxruntime and times it; see gpu/bench/peers/peer.py for the
protocol and onnx_file.py for the graph. Keys and values stay on the device between steps.

    python run_onnxruntime.py model.onnx PROVIDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

MISSING = "not installed (pip install onnxruntime-webgpu, not beside plain onnxruntime)"
FELL_BACK = (
    "{} fell back to the CPU: it finds no GPU driver it accepts (Mesa must be newer than 22)"
)
DEVICES = {"WebGpuExecutionProvider": "webgpu", "CPUExecutionProvider": "cpu"}


class Model:
    """A session and the cache of one sequence."""

    def __init__(self, ort: Any, path: str, provider: str) -> None:
        options = ort.SessionOptions()
        # Spinning threads would slow down the next contestant.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.ort = ort
        self.session = ort.InferenceSession(path, options, providers=[provider])
        self.device = DEVICES[provider]
        pasts = [i for i in self.session.get_inputs() if i.name.startswith("past_key_values.")]
        dtype = np.float16 if pasts[0].type == "tensor(float16)" else np.float32
        _, heads, _, head_dim = pasts[0].shape
        self.empty = np.zeros((1, heads, 0, head_dim), dtype)
        self.cache_names = [p.name.removeprefix("past_key_values.") for p in pasts]
        self.cache: list[Any] = []
        self.n = 0

    def begin(self) -> None:
        self.n = 0
        self.cache = [self.ort.OrtValue.ortvalue_from_numpy(self.empty) for _ in self.cache_names]

    def run(self, ids: list[int]) -> Any:
        """Run the next tokens; return logits (rows, vocab_size)."""
        self.n += len(ids)
        binding = self.session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([ids], np.int64))
        binding.bind_cpu_input("seqlens_k", np.array([self.n - 1], np.int32))
        binding.bind_cpu_input("total_sequence_length", np.array(self.n, np.int32))
        for name, value in zip(self.cache_names, self.cache, strict=True):
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
        binding.bind_output("logits", "cpu")
        for name in self.cache_names:
            binding.bind_output(f"present.{name}", self.device)
        self.session.run_with_iobinding(binding)
        logits, *self.cache = binding.get_outputs()
        return logits.numpy()[0]


def timed(model: Model, prompt: list[int], n_tokens: int) -> dict[str, float]:
    model.begin()
    began = time.perf_counter()
    id = int(model.run(prompt)[-1].argmax())
    prefilled = time.perf_counter()
    for _ in range(n_tokens):
        id = int(model.run([id])[-1].argmax())
    return {"prefill_s": prefilled - began, "decode_s": time.perf_counter() - prefilled}


def answer(model: Model, request: dict[str, Any]) -> dict[str, Any]:
    if "logits" not in request:
        return timed(model, request["prompt"], request["tokens"])
    model.begin()
    # Token by token: the graph may return the last row's logits only.
    return {"logits": [model.run([id])[-1].astype(float).tolist() for id in request["logits"]]}


def main(path: str, provider: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the library's output out of the answers

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    try:
        import onnxruntime
    except ModuleNotFoundError:
        say({"missing": MISSING})
        return
    if provider not in onnxruntime.get_available_providers():
        say({"missing": f"has no {provider}: {MISSING}"})
        return
    model = Model(onnxruntime, path, provider)
    if model.session.get_providers()[0] != provider:
        say({"missing": FELL_BACK.format(provider)})
        return
    say({"device": f"{provider}, onnxruntime {onnxruntime.__version__}"})
    for line in sys.stdin:
        say(answer(model, json.loads(line)))


if __name__ == "__main__":
    main(*sys.argv[1:])
