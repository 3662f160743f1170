"""Measure what the experts of the bundled mixture specialise in, and write its card.

    python -m tests.tale.mixture_card

Text that nobody trained on is routed by `transformers`. Every figure of the card comes from
`training.json`, `routing.json` or `config.json`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from tokenizers import Tokenizer

from app.tale import mixture_dir
from tests.tale.chats import Document, question_turn, story_turn
from tests.tale.corpus import encode
from tests.tale.requests import draw_story

TEMPLATE = Path(__file__).parent / "data" / "mixture-card.md"
SEED, N_DOCUMENTS = 987_021, 120
KINDS: dict[str, Callable[[random.Random], Document]] = {
    "stories": lambda rng: story_turn(draw_story(rng)),
    "answers": question_turn,
}
LEAST_OFTEN = 20
"""A token that occurs less often says little about where it is routed."""
N_SHOWN, SHOWN_LAYER = 6, 3

Counts = npt.NDArray[np.int64]


@torch.inference_mode()
def routing_counts(folder: Path) -> dict[str, Counts]:
    """Return how often each expert was given each token, (n_layers, n_experts, vocab_size), by kind
    of text."""
    model: Any = transformers.MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config, found = model.config, {}
    shape = (config.num_hidden_layers, config.num_local_experts, config.vocab_size)
    for kind, draw in KINDS.items():
        rng, counts = random.Random(SEED), np.zeros(shape, np.int64)
        for _ in range(N_DOCUMENTS):
            ids = np.array([id for id, _ in encode(draw(rng), tokenizer, rng)])
            routers = model(torch.tensor(ids[None]), output_router_logits=True).router_logits
            for layer, logits in enumerate(routers):
                chosen = logits.topk(config.num_experts_per_tok, dim=-1).indices.numpy()
                for experts in chosen.T:
                    np.add.at(counts[layer], (experts, ids), 1)
        found[kind] = counts
    return found


def entropy(counts: Counts) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def told_by(table: Counts) -> float:
    """Return the share of the uncertainty about the expert that the other variable takes away,
    I / H, of counts (n_experts, n_values)."""
    experts, values = entropy(table.sum(1)), entropy(table.sum(0))
    return (experts + values - entropy(table.ravel())) / experts


def measured(folder: Path) -> dict[str, Any]:
    """Return the content of routing.json."""
    by_kind = routing_counts(folder)
    whole = sum(by_kind.values())
    assert isinstance(whole, np.ndarray)
    often = whole[0].sum(0) >= 2 * LEAST_OFTEN
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    layers = []
    for layer, counts in enumerate(whole):
        kinds = np.stack([each[layer].sum(-1) for each in by_kind.values()], axis=1)
        experts = counts.sum(1)
        layers.append(
            {
                "evenness": round(entropy(experts) / float(np.log(len(experts))), 3),
                "by_token": round(told_by(counts[:, often]), 3),
                "by_kind": round(told_by(kinds), 3),
            }
        )
    shares = whole[SHOWN_LAYER] / np.maximum(whole[SHOWN_LAYER].sum(0), 1)
    favourites = [
        [
            tokenizer.decode([int(id)], skip_special_tokens=False)
            for id in np.argsort(-np.where(often, row, 0))[:N_SHOWN]
        ]
        for row in shares
    ]
    return {
        "tokens": int(whole[0].sum() // 2),
        "layers": layers,
        "shown_layer": SHOWN_LAYER,
        "favourites": favourites,
    }


def read(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


def render(folder: Path) -> str:
    """Return the card of the model in `folder`."""
    training, routing = read(folder, "training.json"), read(folder, "routing.json")
    config = read(folder, "config.json")
    expert = 3 * config["hidden_size"] * config["intermediate_size"]
    n_idle = config["num_local_experts"] - config["num_experts_per_tok"]
    active = training["parameters"] - config["num_hidden_layers"] * n_idle * expert
    n_bytes = (folder / "model.safetensors").stat().st_size
    layers = "\n".join(
        f"| {i} | {of['evenness']:.3f} | {of['by_token']:.0%} | {of['by_kind']:.1%} |"
        for i, of in enumerate(routing["layers"])
    )
    favourites = "\n".join(
        f"| {expert} | {' '.join(f'`{text!r}`' for text in texts)} |"
        for expert, texts in enumerate(routing["favourites"])
    )
    return TEMPLATE.read_text(encoding="utf-8").format(
        config=config,
        training=training,
        held_out=training["held_out"],
        millions=training["parameters"] / 1e6,
        active=active / 1e6,
        megabytes=n_bytes / 1e6,
        tokens=training["tokens"] / 1e6,
        same=100 * training["held_out"]["same_argmax"],
        routing=routing,
        layers=layers,
        favourites=favourites,
    )


def main() -> None:
    folder = mixture_dir()
    text = json.dumps(measured(folder), indent=1, ensure_ascii=False) + "\n"
    (folder / "routing.json").write_text(text, encoding="utf-8")
    (folder / "README.md").write_text(render(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
