"""Runs a Hugging Face folder with transformers' continuous batching; see gpu/bench/peers/peer.py
for the protocol.

    python run_continuous_batching.py FOLDER DTYPE CONTEXT STREAMS

CONTEXT are tokens of each of up to STREAMS requests. On CUDA it computes in float16 unless DTYPE is
f32, on the CPU in float32.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

MISSING = "not installed (pip install torch transformers accelerate)"
PAGE_TOKENS = 32
WAIT_SECONDS = 1.0


def loaded(torch: Any, folder: str, dtype: str) -> Any:
    from transformers import LlamaForCausalLM

    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    half = place.type == "cuda" and dtype != "f32"
    model = LlamaForCausalLM.from_pretrained(folder)
    return model.to(place, torch.float16 if half else torch.float32).eval()


def manager_of(transformers: Any, model: Any, n_context: int, n_streams: int) -> Any:
    """Return its manager, not started, with pages for all streams."""
    sampling = transformers.GenerationConfig(
        do_sample=True, temperature=0.8, top_k=0, top_p=1.0, eos_token_id=-1
    )
    pages = n_streams * (-(-n_context // PAGE_TOKENS) + 1)
    batching = transformers.ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=pages,
        max_batch_tokens=n_streams * n_context,
        max_requests_per_batch=n_streams,
        allow_block_sharing=False,
        seed=0,
    )
    return model.continuous_batching_context_manager(
        generation_config=sampling, continuous_batching_config=batching
    )


def streams(manager: Any, prompts: list[list[int]], n_tokens: int) -> dict[str, Any]:
    """Write `n_tokens` after each prompt, all asked for at once."""
    processor, asked = time.process_time(), time.perf_counter()
    names = manager.add_requests(prompts, max_new_tokens=n_tokens, record_timestamps=True)
    found: dict[str, Any] = {}
    while len(found) < len(prompts):
        result = manager.get_result(timeout=WAIT_SECONDS)
        if result is None and not manager.is_running():
            raise SystemExit("the thread of continuous batching ended")
        if result is not None and result.is_finished():
            if result.error is not None:
                raise SystemExit(f"continuous batching failed: {result.error}")
            found[result.request_id] = result
    cpu_s = time.process_time() - processor
    times = [found[name].timestamps for name in names]
    return {"asked": [asked] * len(prompts), "times": times, "cpu_s": cpu_s}


def main(folder: str, dtype: str, n_context: str, n_streams: str) -> None:
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
    if not hasattr(transformers, "ContinuousBatchingConfig"):
        say({"missing": f"transformers {transformers.__version__} has no continuous batching"})
        return
    with torch.inference_mode():
        model = loaded(torch, folder, dtype)
        with manager_of(transformers, model, int(n_context), int(n_streams)) as manager:
            place = torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU"
            kind = str(model.dtype).removeprefix("torch.")
            say({"device": f"{place}, {kind}, transformers {transformers.__version__}"})
            for line in sys.stdin:
                request = json.loads(line)
                say(streams(manager, request["prompts"], request["tokens"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
