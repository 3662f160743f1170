"""An encoder-decoder on a GPU: one text at a time is read by the encoder, all at once, and another
one written by the decoder, a token a pass.

The keys and values of cross-attention are computed in the pass of the encoder and kept in a cache
of their own. The kernel of causal attention reads it: in the step of cross-attention, the row has
the position of the text's last token, so that it sees the whole text.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpu.checkpoint.open_model import open_encoder_decoder
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.weights import WeightLoader
from gpu.config.encoder_decoder import EncoderDecoderConfig
from gpu.kv.blocks import ENCODER_DECODER_SHAPE, MAX_ATTENDING
from gpu.kv.pools import KvPools
from gpu.models.forward_pass import Pass
from gpu.models.t5 import RESIDUAL, T5Decoder, T5Encoder
from gpu.models.workspace import AttentionCapture, Instruments, Workspace
from gpu.ops import Batch
from gpu.ops.step_buffer import STEP_BYTES
from gpu.runner import DecodedToken
from gpu.runners.encoder_passes import (
    DTYPE,
    EncoderPasses,
    Ids,
    PassRunner,
    PreparedPlan,
    attention_capture,
    write_step,
)
from gpu.step import Floats, Row, Sample, Step
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Recorder

LAST = Sample(row=0, slot=0, seed=0, index=0)
"""Names the row whose logits are computed; nothing is drawn."""


class WgpuEncoderDecoder:
    """An encoder-decoder on a device. See `gpu.runner.EncoderDecoder`."""

    max_tokens = max_written = MAX_ATTENDING

    def __init__(
        self, device: Device, config: EncoderDecoderConfig, checkpoint: Checkpoint, name: str
    ) -> None:
        self.name, self.config = name, config
        self._device = device
        self._memory = memory = Memory(device, MAX_ATTENDING)
        with WeightLoader(checkpoint, memory, DTYPE) as load:
            encoder = T5Encoder(config.encoder, load, self.max_tokens)
            self._decoder = T5Decoder(config.decoder, load, encoder.embedding)
        self._source = self._pools()
        self._written = self._pools()
        self._encoder = EncoderPasses(
            encoder, memory, ENCODER_DECODER_SHAPE, self.max_tokens, self._record_cross_kv
        )
        self._step, self._cross_step = (
            memory.zeros(f"decoder.{name}", (STEP_BYTES // 4,), "u32", uniform=True)
            for name in ("step", "cross_step")
        )
        self._logits = memory.zeros("decoder.logits", (1, padded(config.decoder.vocab_size)))
        self._weights, self._cross_weights = self._capture("self"), self._capture("cross")
        self._passes = PassRunner(device)
        self._plan: PreparedPlan | None = None
        self._n_read = 0

    @classmethod
    def load(cls, folder: Path, device: Device) -> WgpuEncoderDecoder:
        """Load a folder as transformers saves it. Raises ModelError and DeviceError."""
        return cls(device, *open_encoder_decoder(folder), folder.resolve().name)

    @property
    def n_bytes(self) -> int:
        return sum(self._memory.n_bytes.values())

    def encode(self, ids: Ids, *, in_pieces: bool = False) -> Generator[None, None, Floats]:
        last_state = Step((Row(0, len(ids) - 1, 0),))
        write_step(self._memory, self._cross_step, last_state, self._source)
        self._memory.write(self._cross_weights.keys, np.array([0, len(ids)], np.uint32))
        self._n_read = len(ids)
        return self._encoder.attention(ids, in_pieces=in_pieces)

    def decode(
        self, token: int, position: int, *, in_pieces: bool = False
    ) -> Generator[None, None, DecodedToken]:
        step = Step((Row(0, position, token),), (LAST,))
        write_step(self._memory, self._step, step, self._written)
        self._memory.write(self._weights.keys, np.array([0, position + 1], np.uint32))
        self._plan = self._plan or self._record()
        yield from self._passes.run(self._plan, in_pieces)
        logits: Floats = self._memory.read(self._logits)[0, : self.config.decoder.vocab_size]
        return DecodedToken(
            logits,
            self._read(self._weights, position + 1),
            self._read(self._cross_weights, self._n_read),
        )

    # ---- inside -----------------------------------------------------------------------------

    def _pools(self) -> KvPools:
        """Allocate a cache of one text, all of whose blocks it has from the start."""
        shape = ENCODER_DECODER_SHAPE
        pools = KvPools(self.config.decoder, shape, DTYPE, 1, self._memory)
        pools.set_blocks(0, list(range(shape.n_blocks)))
        return pools

    def _capture(self, name: str) -> AttentionCapture:
        config = self.config.decoder
        room = config.n_heads * MAX_ATTENDING
        return attention_capture(f"decoder.{name}", config.n_layers, room, self._memory)

    def _read(self, capture: AttentionCapture, n_keys: int) -> Floats:
        """Return the weights that a pass of one row kept, (n_layers, n_heads, n_keys)."""
        n_heads = self.config.decoder.n_heads
        kept = self._memory.read(capture.layers)[:, : n_heads * n_keys]
        weights: Floats = kept.reshape(-1, n_heads, n_keys)
        return weights

    def _record_cross_kv(self, run: Pass, states: Tensor) -> None:
        cross = replace(run, config=self.config.decoder, pools=self._source)
        self._decoder.cross_kv(cross, states)

    def _record(self) -> PreparedPlan:
        """Record the pass of one token in the decoder."""
        config, memory = self.config.decoder, self._memory
        scratch = {"normed": config.hidden_size, RESIDUAL: config.hidden_size}
        run = Pass(
            Recorder(self._device, Kernels(self._device)),
            Batch(self._step, 1, 1),
            config,
            Workspace.make(config, memory, scratch),
            self._written,
            memory.zeros("decoder.chosen", (1,), "u32"),  # bound, never read
            Instruments(attention=self._weights),
        )
        cross = replace(
            run,
            batch=Batch(self._cross_step, 1, 0),
            pools=self._source,
            instruments=Instruments(attention=self._cross_weights),
        )
        self._decoder.logits(run, self._decoder.forward(run, cross), self._logits)
        return self._passes.prepare(run.rec.plan)
