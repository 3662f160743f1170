"""Runs a Hugging Face folder with transformers and times it; see gpu/bench/peers/peer.py for
the protocol.

    python run_transformers.py FOLDER MODE DTYPE CONTEXT

MODE eager: a growing cache, the default of `generate`. MODE compiled: a static cache of
CONTEXT tokens and a decode step under torch.compile, on CUDA as CUDA graphs. On CUDA it computes in
float16 unless DTYPE is f32, on the CPU in float32. Tokens stay on the device: the host waits for
the last one only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

MISSING = "not installed (pip install torch transformers)"


class Model:
    """One sequence. `run` takes the next ids (1, n) and returns logits (rows, vocab_size)."""

    def __init__(self, torch: Any, folder: str, dtype: str) -> None:
        from transformers import LlamaForCausalLM

        self.torch = torch
        self.place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        on_cuda = self.place.type == "cuda"
        self.dtype = torch.float16 if on_cuda and dtype != "f32" else torch.float32
        model = LlamaForCausalLM.from_pretrained(folder)
        self.model = model.to(self.place, self.dtype).eval()
        self.cache: Any = None

    def begin(self) -> None:
        from transformers import DynamicCache

        self.cache = DynamicCache()

    def run(self, ids: Any) -> Any:
        found = self.model(
            input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        return found.logits[0]

    def decode(self, id: Any) -> Any:
        """Return the token (1, 1) after the token `id` (1, 1)."""
        return self.run(id).argmax(-1, keepdim=True)

    def tensor(self, ids: list[int]) -> Any:
        return self.torch.tensor([ids], device=self.place)

    def wait(self) -> None:
        if self.place.type == "cuda":
            self.torch.cuda.synchronize()

    def device(self) -> str:
        cuda = self.place.type == "cuda"
        name = self.torch.cuda.get_device_name() if cuda else f"{os.cpu_count()} CPUs"
        return f"{name}, {str(self.dtype).removeprefix('torch.')}, PyTorch {self.torch.__version__}"


class Compiled(Model):
    """A cache of fixed size; steps of one token are compiled."""

    def __init__(self, torch: Any, folder: str, dtype: str, context: int) -> None:
        from transformers import StaticCache

        super().__init__(torch, folder, dtype)
        self.cache = StaticCache(config=self.model.config, max_cache_len=context)
        mode = "reduce-overhead" if self.place.type == "cuda" else "default"
        self._step = torch.compile(super().decode, mode=mode, dynamic=False)

    def begin(self) -> None:
        self.cache.reset()

    def decode(self, id: Any) -> Any:
        return self._step(id).clone()  # the next step's CUDA graph overwrites it


def timed(model: Model, prompt: list[int], n_tokens: int) -> dict[str, float]:
    model.begin()
    ids = model.tensor(prompt)
    model.wait()
    began = time.perf_counter()
    id = model.run(ids).argmax(-1, keepdim=True)
    model.wait()
    prefilled = time.perf_counter()
    for _ in range(n_tokens):
        id = model.decode(id)
    model.wait()
    return {"prefill_s": prefilled - began, "decode_s": time.perf_counter() - prefilled}


def answer(model: Model, request: dict[str, Any]) -> dict[str, Any]:
    if "logits" not in request:
        return timed(model, request["prompt"], request["tokens"])
    model.begin()
    rows = [model.run(model.tensor([id]))[-1].float().tolist() for id in request["logits"]]
    return {"logits": rows}


def opened(torch: Any, folder: str, mode: str, dtype: str, context: int) -> Model:
    """Return a model that has run two steps. Raises the error of torch.compile if that fails."""
    compiled = mode == "compiled"
    model = Compiled(torch, folder, dtype, context) if compiled else Model(torch, folder, dtype)
    timed(model, [0], 2)
    return model


def main(folder: str, mode: str, dtype: str, context: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the libraries' output out of the answers

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    try:
        import torch
        import transformers
    except ModuleNotFoundError:
        say({"missing": MISSING})
        return
    with torch.inference_mode():
        try:
            model = opened(torch, folder, mode, dtype, int(context))
        except Exception as error:
            say({"missing": f"{mode} does not run here: {str(error).strip().splitlines()[0]}"})
            return
        say({"device": f"{model.device()}, transformers {transformers.__version__}"})
        for line in sys.stdin:
            say(answer(model, json.loads(line)))


if __name__ == "__main__":
    main(*sys.argv[1:])
