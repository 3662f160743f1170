"""Queries and keys with norms of their own (Henry et al. 2020; Dehghani et al. 2023), which keep
scores from growing while a model is trained. What several architectures do to Llama's attention:

    qkv          RMSNorm, projections to queries, keys, values
    place_heads  RMSNorm of queries and keys; rotary positions; keys and values into the cache
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu import ops
from gpu.checkpoint.weights import WeightLoader
from gpu.models.llama import Llama
from gpu.models.recording import Pass


class HeadNorms(Llama):
    """Llama with norms of queries and keys before they are turned."""

    heads_together = False
    """All query heads are one row to the norm, and all key heads; else each head is."""

    @property
    def scratch(self) -> Mapping[str, int]:
        config = self.config
        n_heads = config.n_heads + 2 * config.n_kv_heads
        return {**super().scratch, "projected": n_heads * config.head_dim}

    def project(self, run: Pass, name: str, i: int) -> None:
        layer, work = self.layers[i], run.work
        projected = work.scratch["projected"]
        label, x, norm = f"{name}.qkv", work.stream.before(i), layer.norms.before_attention
        bias = run.bias(label, x, layer.qkv, layer.qkv_bias, norm)
        ops.matmul(run.rec, run.batch, label, x, layer.qkv, projected, norm=norm, bias=bias)
        ops.place_heads(
            run.rec,
            run.batch,
            f"{name}.place_heads",
            self.config,
            projected,
            self.head_gains[i],
            self.rotations(i),
            run.pools,
            i,
            work.q,
            whole=self.heads_together,
        )

    def load_rest(self, load: WeightLoader, context: int) -> None:
        super().load_rest(load, context)
        config = self.config
        n_queries, n_keys = (config.n_heads, config.n_kv_heads) if self.heads_together else (1, 1)
        attn = "model.layers.{}.self_attn"
        self.head_gains = [
            load.joined(
                f"layer{i:02}.attn.head_norms",
                (f"{attn.format(i)}.q_norm.weight", n_queries * config.head_dim),
                (f"{attn.format(i)}.k_norm.weight", n_keys * config.head_dim),
                plus=float(self.gain_is_less_one),
            )
            for i in range(config.n_layers)
        ]

    def turned_rows(self, i: int) -> int:
        return 0  # nothing is turned before its norm is known
