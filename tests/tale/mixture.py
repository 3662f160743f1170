"""Train the bundled mixture of experts: `tale` with eight small experts in every layer.

    python -m tests.tale.mixture

It begins as the dense model cut into experts (`upcycle.py`) and learns that model's probabilities
of every token that counts (Hinton et al. 2015, as `distill.py` does). A second loss keeps the
experts of each layer evenly used (Fedus et al. 2021, "Switch Transformers", equations 4 to 6).
Steps, text and seed are fixed, so that a run can be repeated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from app.tale import mixture_dir, model_dir
from tests.tale import corpus
from tests.tale.distill import counted_logits, divergence
from tests.tale.export import generation_config, load
from tests.tale.packing import PADDING, Batch, batches
from tests.tale.train import HELD_OUT_SEED, endless, learning_rate, set_rates
from tests.tale.upcycle import EXPERTS_PER_TOKEN, N_EXPERTS, upcycle

STREAM_SEED = 21
FIT_BATCHES, HELD_OUT_BATCHES = 8, 4
BALANCE = 0.02
"""Weight of the load-balancing loss, a mean over the layers."""
RATES = {"experts": 2e-3, "mlp.gate": 2e-3, "embed_tokens": 5e-3, "model.norm": 2e-5}
OTHER_RATE = 7e-4
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def forward(model: Any, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the logits of the tokens that count, (n_counted, vocab_size), and of each layer the
    router's logits of all tokens, (n, n_experts)."""
    out = model.model(
        batch.ids,
        attention_mask=batch.mask,
        position_ids=batch.positions,
        output_router_logits=True,
        use_cache=False,
    )
    return model.lm_head(out.last_hidden_state[batch.target != PADDING]), out.router_logits


def imbalance(routers: tuple[Tensor, ...], batch: Batch) -> Tensor:
    """Return the mean load-balancing loss of the layers: 0 if each spreads its tokens evenly."""
    real = (batch.document != PADDING).long()
    losses = [
        load_balancing_loss_func((logits,), N_EXPERTS, EXPERTS_PER_TOKEN, real)
        for logits in routers
    ]
    return torch.stack([torch.as_tensor(loss) for loss in losses]).mean() - EXPERTS_PER_TOKEN


def optimizer(model: Any) -> torch.optim.Optimizer:
    """Return AdamW with a learning rate for each kind of weight."""
    groups = []
    for name, parameter in model.named_parameters():
        rate = next((rate for part, rate in RATES.items() if part in name), OTHER_RATE)
        decay = 0.05 if "experts" in name else 0.0
        groups.append({"params": [parameter], "lr": rate, "weight_decay": decay})
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


@torch.inference_mode()
def held_out_figures(teacher: Any, model: Any, held_out: list[Batch]) -> dict[str, Any]:
    """Return figures of unseen text: cross-entropy of both models, their divergence, how often they
    have the same most likely token, and how evenly each layer uses its experts (entropy, 1 if all
    are used equally often)."""
    apart, same, n, nats = 0.0, 0, 0, [0.0, 0.0]
    counts = torch.zeros(len(model.model.layers), N_EXPERTS)
    for batch in held_out:
        wanted = counted_logits(teacher, batch)
        found, routers = forward(model, batch)
        target = batch.target[batch.target != PADDING]
        for i, logits in enumerate((wanted, found)):
            nats[i] += float(torch.nn.functional.cross_entropy(logits, target, reduction="sum"))
        apart += float(divergence(wanted, found)) * len(target)
        same += int((wanted.argmax(-1) == found.argmax(-1)).sum())
        n += len(target)
        real = (batch.document != PADDING).flatten()
        for layer, logits in enumerate(routers):
            chosen = logits[real].topk(EXPERTS_PER_TOKEN, dim=-1).indices
            counts[layer] += torch.bincount(chosen.flatten(), minlength=N_EXPERTS)
    shares = counts / counts.sum(-1, keepdim=True)
    evenness = -(shares * shares.clamp(min=1e-9).log()).sum(-1) / torch.tensor(N_EXPERTS).log()
    return {
        "dense_loss": round(nats[0] / n, 4),
        "loss": round(nats[1] / n, 4),
        "kl": round(apart / n, 4),
        "same_argmax": round(same / n, 4),
        "evenness": [round(value, 3) for value in evenness.tolist()],
    }


def export(model: Any, folder: Path) -> None:
    """Write the model in f16, with the tokenizer and the chat format of the dense one."""
    folder.mkdir(parents=True, exist_ok=True)
    half = type(model)(model.config).to(torch.float16)
    half.load_state_dict(model.state_dict())
    half.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    text = json.dumps(generation_config(), indent=2) + "\n"
    (folder / "generation_config.json").write_text(text, "utf-8")
    for name in TOKENIZER_FILES:
        shutil.copyfile(model_dir() / name, folder / name)


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    teacher = load(model_dir())
    stream = corpus.build(options.documents, STREAM_SEED, n_processes=options.threads)
    unseen = corpus.build(600, HELD_OUT_SEED, n_processes=options.threads)
    held_out = list(islice(batches(unseen, options.batch, 0), HELD_OUT_BATCHES))
    model = upcycle(teacher, list(islice(batches(stream, options.batch, 1), FIT_BATCHES)))
    print(f"upcycled: {held_out_figures(teacher, model, held_out)}", flush=True)
    stepper = optimizer(model)
    peaks = [[group["lr"] for group in stepper.param_groups]]
    began, n_tokens = time.process_time(), 0
    for step, batch in enumerate(islice(endless(stream, options.batch), options.steps)):
        set_rates([stepper], peaks, learning_rate(step / options.steps))
        with torch.inference_mode():
            wanted = counted_logits(teacher, batch)
        found, routers = forward(model, batch)
        apart, uneven = divergence(wanted.clone(), found), imbalance(routers, batch)
        (apart + BALANCE * uneven).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        stepper.zero_grad()
        n_tokens += int((batch.document != PADDING).sum())
        if step % options.report == 0:
            used = (time.process_time() - began) / 60
            print(f"{step}: {used:.1f} min, KL {apart:.3f}, imbalance {uneven:.3f}", flush=True)
    export(model, options.out)
    record = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": options.steps,
        "tokens": n_tokens,
        "seed": options.seed,
        "cpu_minutes": round((time.process_time() - began) / 60, 1),
        "held_out": held_out_figures(teacher, model, held_out),
    }
    (options.out / "training.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    print(json.dumps(record, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=mixture_dir(), help="folder of the model")
    parser.add_argument("--documents", type=int, default=13_000)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch", type=int, default=1920, help="tokens per step, with padding")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", type=int, default=25, help="steps between reports")
    parser.add_argument("--seed", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
