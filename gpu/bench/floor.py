"""The floor: time of the bare work of a step, without anything else a model adds.

A plan of the same matmuls over the same weight buffers without fusions (no norm, bias, residual or
gate), one dispatch per layer that reads the step's keys and values once, and the output head. Each
waits for the previous one, as in the model. No embedding, RoPE, softmax, sampler or readback of
results.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu import ops
from gpu.bench.contestants import Figures, decode_steps, greedy
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.pools import KvPools
from gpu.ops import Batch
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Row, Step
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import Readback, StepCommands
from gpu.webgpu.plan import Plan, Recorder

TOUCH_WORKGROUP = 64

PlanKey = tuple[int, int, int]
"""(rows, samples, tokens of context)"""


class Floor:
    """Replays the bare dispatches of `runner`'s model, with as many steps in flight."""

    name = "floor"

    def __init__(self, runner: WgpuRunner) -> None:
        self.figures = Figures()
        self._runner = runner
        self._activations = Activations.make(runner, Memory(runner.gpu))
        self._plans: dict[PlanKey, Plan] = {}
        self._commands: dict[PlanKey, Any] = {}
        self._calls = open_calls(runner.gpu)
        self._blocks = runner.pools.blocks[0]
        self._step_bytes = bytearray(STEP_BYTES)
        self._write = self._calls.writer(self._activations.batch.step.buffer, self._step_bytes)
        self._done = [self._calls.readback(16, f"floor{i}") for i in range(runner.in_flight)]

    def run(self, prompt: list[int], n_tokens: int) -> None:
        n_prompt = len(prompt)
        self._runner.set_blocks(0, list(range(blocks_for(n_prompt + n_tokens))))
        began = time.perf_counter()
        self._replay(_prefill_steps(n_prompt, self._runner.limits.max_rows), n_prompt)
        prefilled = time.perf_counter()
        middle = decode_steps(n_prompt + n_tokens // 2, 1)
        self._replay(middle * n_tokens, n_prompt + n_tokens)
        self.figures.decode_tok_s.append(n_tokens / (time.perf_counter() - prefilled))
        self.figures.prefill_tok_s.append(n_prompt / (prefilled - began))

    def plan(self, n_rows: int, n_samples: int, context: int) -> Plan:
        """Return the bare plan of a step that reads a cache of `context` tokens."""
        key = (n_rows, n_samples, context)
        if key not in self._plans:
            self._plans[key] = self._record(*key)
        return self._plans[key]

    def _record(self, n_rows: int, n_samples: int, context: int) -> Plan:
        runner, to, model = self._runner, self._activations, self._runner.model
        batch = replace(to.batch, n_rows=n_rows, n_samples=n_samples)
        rec = Recorder(runner.gpu, runner.plans.kernels)
        matrices = model.layer_matrices()
        for i in range(runner.config.n_layers):
            qkv, out, gate_up, down = matrices[4 * i : 4 * i + 4]  # order of a Llama layer
            name = f"layer{i:02}"
            ops.matmul(rec, batch, f"{name}.attn.qkv", to.resid_pre, qkv, to.qkv)
            touch_kv(
                rec, batch, f"{name}.attn.touch", to.qkv, runner.pools, i, context, to.attn_out
            )
            ops.matmul(rec, batch, f"{name}.attn.out", to.attn_out, out, to.resid_mid)
            ops.matmul(rec, batch, f"{name}.mlp.gate_up", to.resid_mid, gate_up, to.gate_up)
            ops.matmul(rec, batch, f"{name}.mlp.down", to.ffn_hidden, down, to.resid_pre)
        if n_samples:
            ops.matmul(rec, batch, "head", to.resid_pre, model.head, to.logits, gather=True)
        return rec.plan

    def _replay(self, steps: Sequence[Step], context: int) -> None:
        """Run `steps` with the runner's in-flight depth; return when all are done. A repeated step
        is not written to the device again."""
        depth, previous = len(self._done), None
        for i, step in enumerate(steps):
            done = self._done[i % depth]
            if i >= depth:
                _finish(done)
            if step is not previous:
                self._write(pack_step(step, self._step_bytes, self._blocks))
            commands = self._prepared((len(step.rows), len(step.samples), context))
            self._calls.submit(self._calls.encode(commands, done), done)
            previous = step
        for i in range(max(0, len(steps) - depth), len(steps)):
            _finish(self._done[i % depth])

    def _prepared(self, key: PlanKey) -> Any:
        if key not in self._commands:
            plan = self.plan(*key)
            self._commands[key] = self._calls.prepare(StepCommands(plan.segments()))
        return self._commands[key]


@dataclass(frozen=True, slots=True)
class Activations:
    """Activations, (max_rows, width) each. `ffn_hidden` is the first half of `gate_up`'s memory:
    `down` reads rows half as wide as an ungated matmul writes."""

    batch: Batch
    resid_pre: Tensor
    resid_mid: Tensor
    qkv: Tensor
    attn_out: Tensor
    gate_up: Tensor
    ffn_hidden: Tensor
    logits: Tensor

    @classmethod
    def make(cls, runner: WgpuRunner, memory: Memory) -> Activations:
        config = runner.config

        def rows(name: str, width: int) -> Tensor:
            return memory.zeros(f"floor.{name}", (memory.max_rows, padded(width)))

        step = memory.zeros("floor.step", (STEP_BYTES // 4,), "u32", uniform=True)
        q_width = config.n_heads * config.head_dim
        kv_width = config.n_kv_heads * config.head_dim
        gate_up = rows("gate_up", 2 * config.intermediate_size)
        return cls(
            batch=replace(Batch(step, 1, 1), quantized_rows=runner.plans.quantized_rows),
            resid_pre=rows("resid_pre", config.hidden_size),
            resid_mid=rows("resid_mid", config.hidden_size),
            qkv=rows("qkv", q_width + 2 * kv_width),
            attn_out=rows("attn_out", q_width),
            gate_up=gate_up,
            ffn_hidden=replace(gate_up, shape=(memory.max_rows, padded(config.intermediate_size))),
            logits=memory.zeros("floor.logits", (1, padded(config.vocab_size))),
        )


def _prefill_steps(n_prompt: int, max_rows: int) -> list[Step]:
    steps = []
    for first in range(0, n_prompt, max_rows):
        rows = tuple(Row(0, i, 0) for i in range(first, min(first + max_rows, n_prompt)))
        last = rows[-1].position == n_prompt - 1
        steps.append(Step(rows, (greedy(len(rows) - 1, 0),) if last else ()))
    return steps


def _finish(done: Readback) -> None:
    """Wait for a submission and release its readback."""
    done.wait()
    done.read(4)


def touch_kv(
    rec: Recorder,
    batch: Batch,
    label: str,
    q: Tensor,
    pools: KvPools,
    layer: int,
    context: int,
    out: Tensor,
) -> None:
    """Read the keys and values of the last row's sequence in `layer`, up to the block of its
    position. There are workgroups for `context` tokens, at most as many as `out` can hold."""
    keys, values = pools.keys[layer], pools.values[layer]
    block_vec4s = [pool.n_bytes // pools.shape.n_blocks // 16 for pool in (keys, values)]
    wanted = blocks_for(context) * max(block_vec4s) // (4 * TOUCH_WORKGROUP)
    groups = max(1, min(wanted, int(np.prod(out.shape)) // TOUCH_WORKGROUP))
    rec.dispatch(
        label,
        "bench/touch_kv",
        {
            "step": batch.step,
            "q": q,
            "k_pool": keys,
            "v_pool": values,
            "block_tables": pools.tables_of(layer),
            "out": out,
        },
        (groups, 1, 1),
        {
            "KEY_VEC4S": block_vec4s[0],
            "VALUE_VEC4S": block_vec4s[1],
            "BLOCK_TOKENS": BLOCK_TOKENS,
            "MAX_BLOCKS": pools.shape.max_blocks,
            "GROUPS": groups,
            "WORKGROUP": TOUCH_WORKGROUP,
        },
    )
