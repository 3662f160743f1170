"""Generate text with the exported tale model: batched sampling in torch, for evaluation and card
only; the engine's sampler is `gpu.ops.sampling` with its twin `gpu.reference.sampler`.

    python -m tests.tale.sample "Tell me a story about a fox and a lantern."

Each prompt has its own random stream, so a text does not depend on which others it was made with.
"""

from __future__ import annotations

import argparse

import torch
from tokenizers import Tokenizer
from torch import Tensor

from app.tale import model_dir
from tests.tale.chats import Chat, Message
from tests.tale.corpus import ENDOFTEXT, IM_END
from tests.tale.export import load
from tests.tale.model import Tale

STOPS = (IM_END, ENDOFTEXT)


def render(chat: Chat) -> str:
    """Render a chat as the chat template does, with the beginning of the assistant's turn."""
    turns = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in chat)
    return f"{turns}<|im_start|>assistant\n"


def ask(text: str) -> str:
    return render([Message("user", text)])


def draw(logits: Tensor, temperature: float, top_p: float, uniform: Tensor) -> Tensor:
    """Draw one id per row of logits (n, vocab_size) by inverse transform of `uniform` (n,)."""
    if temperature == 0.0:
        return logits.argmax(-1)
    probabilities, ids = torch.softmax(logits / temperature, -1).sort(-1, descending=True)
    before = probabilities.cumsum(-1) - probabilities
    probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    cumulative = probabilities.cumsum(-1)
    threshold = uniform[:, None] * cumulative[:, -1:]
    index = (cumulative <= threshold).sum(-1, keepdim=True).clamp(max=ids.shape[-1] - 1)
    return ids.gather(-1, index)[:, 0]


@torch.inference_mode()
def generate(
    model: Tale,
    prompts: list[list[int]],
    *,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seeds: list[int],
) -> list[list[int]]:
    """Generate up to `max_tokens` ids for each prompt, including the stop id if there is one."""
    n, longest = len(prompts), max(map(len, prompts))
    ids = torch.tensor([[ENDOFTEXT] * (longest - len(p)) + p for p in prompts])
    padding = torch.tensor([longest - len(p) for p in prompts])[:, None]  # (n, 1), on the left
    index = torch.arange(longest)[None]
    real = index >= padding  # (n, longest)
    positions = (index - padding).clamp(min=0)
    itself = torch.eye(longest, dtype=torch.bool)
    mask = (real[:, None, :] & torch.ones(longest, longest).tril().bool()) | itself
    hidden, past = model(ids, positions, mask[:, None])
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    written: list[list[int]] = [[] for _ in prompts]
    running = set(range(n))
    for step in range(max_tokens):
        uniform = torch.stack([torch.rand((), generator=g) for g in generators])
        chosen = draw(model.logits(hidden[:, -1]), temperature, top_p, uniform)
        for row in list(running):
            token = int(chosen[row])
            written[row].append(token)
            if token in STOPS:
                running.discard(row)
        if not running:
            break
        real = torch.cat([real, torch.ones(n, 1, dtype=torch.bool)], dim=1)
        at = longest - padding + step
        hidden, past = model(chosen[:, None], at, real[:, None, None], past)
    return written


def complete(
    model: Tale,
    tokenizer: Tokenizer,
    prompts: list[str],
    *,
    temperature: float = 0.8,
    top_p: float = 0.95,
    max_tokens: int = 320,
    seed: int = 1,
) -> list[tuple[str, int, bool]]:
    """Return (text, number of tokens, ended by itself) for each prompt; prompt i has seed + i."""
    written = generate(
        model,
        [tokenizer.encode(prompt).ids for prompt in prompts],
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seeds=[seed + i for i in range(len(prompts))],
    )
    return [(tokenizer.decode(ids), len(ids), ids[-1] in STOPS) for ids in written]


def open_bundled() -> tuple[Tale, Tokenizer]:
    return load(model_dir()), Tokenizer.from_file(str(model_dir() / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--n", type=int, default=1, help="number of texts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--raw", action="store_true", help="continue the text, no chat template")
    options = parser.parse_args()
    model, tokenizer = open_bundled()
    prompt = options.text if options.raw else ask(options.text)
    for text, n_tokens, ended in complete(
        model,
        tokenizer,
        [prompt] * options.n,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
    ):
        print(f"{text}\n({n_tokens} tokens{'' if ended else ', cut off'})\n")


if __name__ == "__main__":
    main()
