"""What a step must do: the bytes it reads, the operations it computes."""

from __future__ import annotations

from gpu.runners.wgpu_runner import WgpuRunner


def weight_bytes(runner: WgpuRunner) -> int:
    """Bytes of weights a decode step must read: every matrix once; of an untied embedding one
    row."""
    model, config = runner.model, runner.config
    n_bytes = sum(matrix.n_bytes for matrix in model.matrices())
    if not config.tie_embeddings:
        n_bytes -= model.embedding.n_bytes * (config.vocab_size - 1) // config.vocab_size
    return n_bytes


def kv_bytes(runner: WgpuRunner, context: int) -> int:
    """Bytes of keys and values of `context` tokens."""
    return context * runner.limits.block_bytes // runner.limits.block_tokens


def prefill_flops(runner: WgpuRunner, n_prompt: int) -> int:
    """Operations of a prompt, a multiply-add counted as two: every row through the matrices of the
    layers and over all keys and values before it, the last one through the output head. Norms,
    rotary positions, softmax and activations are not counted."""
    model, config = runner.model, runner.config
    layers = sum(matrix.n * matrix.k for matrix in model.layer_matrices())
    pairs = n_prompt * (n_prompt + 1) // 2  # of a row and a key
    attention = 2 * config.n_layers * config.n_heads * config.head_dim * pairs
    return 2 * (n_prompt * layers + attention + model.head.n * model.head.k)
