"""Writes the golden file of the bundled model with `transformers`:

    python -m tests.golden.make

Three prompts, each continued greedily with 200 tokens, in float32 with eager attention on the CPU.
The end-of-text token is treated as any other, as such short stories would end before.
Log-probabilities of the tokens and norms of the residual stream after every layer come from one
pass over the whole text.

The last digits may depend on the version of torch and the processor, so the file is made again only
when the bundled model is.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from app.tale import model_dir
from tests.golden import TALE_FILE

N_TOKENS = 200
PROMPTS = (
    "Once upon a time there was a fox who found a lantern",
    "There was once a badger who",
)
ASKED = ("Tell me a story about a frog and a bell",)
"""A chat message for the model's own template."""
LEAST_GAP = 0.01
"""Least difference of the two largest logits of any step: a hundred times the difference between
engines."""
DIGITS = 8
"""Digits of a number in the file: more than float32 has."""
NOTE = (
    "Made by python -m tests.golden.make. Greedy, float32, eager attention; the end-of-text token "
    "is written like any other (ignore_eos). logprobs: nats, of each written token. norms: of the "
    "residual stream after the embedding and after each layer, of each token read (all of prompt "
    "and text but the last). smallest_top2_gap: between the two largest logits of any step."
)


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model_dir())
    model = AutoModelForCausalLM.from_pretrained(
        model_dir(), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=N_TOKENS, eos_token_id=None, pad_token_id=0
    )
    texts = [golden(model, tokenizer, prompt, None) for prompt in PROMPTS]
    texts += [golden(model, tokenizer, rendered(tokenizer, asked), asked) for asked in ASKED]
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    parts = [f'"note": {json.dumps(NOTE)}', f'"versions": {json.dumps(versions)}']
    parts.append('"texts": [\n' + ",\n".join(lines(text) for text in texts) + "\n]")
    TALE_FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


def rendered(tokenizer: Any, asked: str) -> str:
    messages = [{"role": "user", "content": asked}]
    found: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return found


@torch.no_grad()
def golden(model: Any, tokenizer: Any, prompt: str, asked: str | None) -> dict[str, Any]:
    """Return one text. Raises ValueError if two tokens are too close for it to be golden."""
    prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
    ids = model.generate(torch.tensor([prompt_ids]), attention_mask=torch.ones(1, len(prompt_ids)))
    n_prompt, greedy_ids = len(prompt_ids), ids[0, len(prompt_ids) :].tolist()
    norms = watched(model)
    logits = model(ids[:, :-1]).logits[0, n_prompt - 1 :].double()
    first, second = logits.topk(2).values.T
    gap = float((first - second).min())
    if gap < LEAST_GAP or logits.argmax(-1).tolist() != greedy_ids or len(greedy_ids) != N_TOKENS:
        raise ValueError(f"{prompt!r}: smallest gap {gap:g}, {len(greedy_ids)} tokens")
    logprobs = logits.log_softmax(-1)[range(N_TOKENS), greedy_ids]
    return {
        "prompt": prompt,
        "asked": asked,
        "text": tokenizer.decode(greedy_ids, skip_special_tokens=True),
        "smallest_top2_gap": gap,
        "prompt_ids": prompt_ids,
        "greedy_ids": greedy_ids,
        "logprobs": short(logprobs.tolist()),
        "norms": [short(each.tolist()) for each in norms],
    }


def watched(model: Any) -> list[torch.Tensor]:
    """Record the norms (n,) of the residual stream after the embedding and each layer in the next
    pass."""
    norms: list[torch.Tensor] = []
    handles: list[Any] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        states = (output[0] if isinstance(output, tuple) else output)[0]
        norms.append(states.double().norm(dim=-1))
        handles.pop(0).remove()

    for module in (model.model.embed_tokens, *model.model.layers):
        handles.append(module.register_forward_hook(keep))
    return norms


def short(numbers: list[float]) -> list[float]:
    return [float(f"{number:.{DIGITS}g}") for number in numbers]


def lines(text: dict[str, Any]) -> str:
    """Return JSON with one line for each field and for the norms of each layer."""
    fields = []
    for name, value in text.items():
        if name == "norms":
            rows = ",\n   ".join(json.dumps(row, separators=(",", ":")) for row in value)
            fields.append(f'  "norms": [\n   {rows}\n  ]')
        else:
            compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            fields.append(f"  {json.dumps(name)}: {compact}")
    return " {\n" + ",\n".join(fields) + "\n }"


if __name__ == "__main__":
    main()
