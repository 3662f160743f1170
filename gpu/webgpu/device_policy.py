"""Policy of a device: every choice that depends on the kind of device is made here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from gpu.info import AdapterInfo
from gpu.webgpu.tiling import GPU, SHARED_M_SIZES, SOFTWARE, Tuning

IN_FLIGHT = 3
"""Steps in flight on a GPU: one runs, one waits for it, one is encoded or read back."""
SOFTWARE_IN_FLIGHT = 2
"""Steps in flight on a software device. Mesa's driver starts a step when the one before has ended,
so with three every result would be read one step late."""
ROWS = 128
"""Rows of a step, where more would keep the device from other work for seconds."""
DISCRETE_ROWS = 512
"""Rows of a step on a discrete GPU: fewer leave multiprocessors idle and read the weights more
often."""
DISCRETE = "discrete GPU"
MAX_LOOP_ROUNDS = 65_535
"""Mesa's software driver silently ends all loops of a shader after this many rounds in all."""


class PolicyChoice(NamedTuple):
    """One choice of a policy in words."""

    name: str
    value: str
    reason: str


SHARED_TILE_BYTES = 24 << 10
"""Workgroup memory of the largest shared tile: 128 rows and 64 columns of a block."""

AttentionLoads = Literal["own", "shuffle", "coalesced"]


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """Choices for one device.

    max_rows             most rows of a step: the chunk of a prompt
    tuning               matmul tiles to start from, if the device can shuffle (`Device.open` tries)
    row_lanes            lanes of a workgroup that serves one row or one head
    attention_queries    most queries of one workgroup of attention
    attention_loads      how lanes of attention get keys and values, see `AttentionTiling`
    kv_split_size        keys of one split of attention
    interleaves_weights  rows of a weight are interleaved block by block
    weights_in_textures  weights are textures instead of buffers
    loads_64_bits        words are loaded as 64-bit integers
    max_loop_rounds      rounds after which the driver ends a shader's loops; None: no limit
    copy_bytes           bytes of one copy when bandwidth is measured
    steps_in_flight      most steps submitted and not yet read back
    times_every_step     every captured step takes the times of its layers
    """

    max_rows: int
    tuning: Tuning
    row_lanes: int
    attention_queries: int
    attention_loads: AttentionLoads
    kv_split_size: int
    interleaves_weights: bool
    weights_in_textures: bool
    loads_64_bits: bool
    max_loop_rounds: int | None
    copy_bytes: int
    steps_in_flight: int
    times_every_step: bool

    @classmethod
    def of(cls, info: AdapterInfo) -> DevicePolicy:
        return _software(info) if info.software else _gpu(info)

    def choices(self, info: AdapterInfo) -> tuple[PolicyChoice, ...]:
        """Return the choices with their reasons, for people."""
        device = "a software device" if info.software else "a GPU"
        has = "has" if "subgroup" in info.features else "lacks"
        words = "64-bit integers" if self.loads_64_bits else "32-bit words"
        return (
            PolicyChoice("matmul", str(self.tuning), f"default for {device}"),
            PolicyChoice(
                "attention",
                f"{self.attention_loads}, splits of {self.kv_split_size} keys",
                f"{device} that {has} subgroups" if info.software else device,
            ),
            PolicyChoice(
                "weights",
                f"{'textures' if self.weights_in_textures else 'buffers'} in {words}, rows "
                + ("interleaved" if self.interleaves_weights else "one after the other"),
                f"fastest measured on {device}" if info.software else "coalesced loads",
            ),
            PolicyChoice("rows", f"{self.row_lanes} lanes", f"default for {device}"),
            PolicyChoice(
                "prompt chunk",
                f"{self.max_rows} tokens",
                "weights are read less often"
                if self.max_rows > ROWS
                else "other work waits for less than a second",
            ),
            PolicyChoice(
                "steps in flight",
                str(self.steps_in_flight),
                "results would come a step late" if info.software else "the GPU never waits",
            ),
            PolicyChoice(
                "layer times",
                "every step" if self.times_every_step else "some steps",
                "timestamps interrupt the step" if info.software else "timestamps are cheap",
            ),
        )

    @property
    def lib(self) -> dict[str, str]:
        """Files of shaders/lib that replace others on this device, by the name they replace."""
        words = {"words": "words_64"} if self.loads_64_bits else {}
        store = {"weight_store": "weight_store_texture"} if self.weights_in_textures else {}
        return words | store


def _gpu(info: AdapterInfo) -> DevicePolicy:
    """Return the policy of a GPU: many lanes with short sums; short splits keep many cores busy."""
    large = info.limits.get("max-compute-workgroup-storage-size", 0) >= SHARED_TILE_BYTES
    return DevicePolicy(
        max_rows=DISCRETE_ROWS if info.kind == DISCRETE else ROWS,
        tuning=GPU if large else replace(GPU, shared_m=SHARED_M_SIZES[-1]),
        row_lanes=64,
        attention_queries=8,
        attention_loads="coalesced",
        kv_split_size=128,
        interleaves_weights=False,
        weights_in_textures=False,
        loads_64_bits=False,
        max_loop_rounds=None,
        copy_bytes=256 << 20,
        steps_in_flight=IN_FLIGHT,
        times_every_step=True,
    )


def _software(info: AdapterInfo) -> DevicePolicy:
    """Return the policy of a software device: few lanes that reuse every load, because loads are
    emulated lane by lane.

    Splits are longer, since each costs a dispatch. Timestamps interrupt the step, so not every step
    takes them. Copies are smaller: touching memory for the first time is slow.
    """
    wide = "shader-int64" in info.features
    return DevicePolicy(
        max_rows=ROWS,
        tuning=SOFTWARE,
        row_lanes=8,
        attention_queries=12,
        attention_loads="shuffle" if "subgroup" in info.features else "own",
        kv_split_size=512,
        interleaves_weights=True,
        # SwiftShader, which has no 64-bit integers, reads textures more slowly than buffers.
        weights_in_textures=wide and info.backend == "Vulkan",
        loads_64_bits=wide,
        max_loop_rounds=MAX_LOOP_ROUNDS,
        copy_bytes=64 << 20,
        steps_in_flight=SOFTWARE_IN_FLIGHT,
        times_every_step=False,
    )
