"""Runs an exported model from its files alone, through wgpu's public API and docs/plan-format.md:
what an engine in a browser does. Nothing here is shared with the engine."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import wgpu

from tests.gpu.export.recipes import interleave

FROM_GPU = -1


class Player:
    """One sequence in slot 0 of an exported model, on a device with default limits."""

    def __init__(self, adapter: wgpu.GPUAdapter, folder: Path, profile: str) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())["model"]
        self.plan = json.loads(
            gzip.decompress((folder / manifest["plans"][profile]["file"]).read_bytes())
        )
        pieces = manifest["weights"]["pieces"]
        self.data = b"".join((folder / piece["file"]).read_bytes() for piece in pieces)
        needs = self.plan["needs"]
        assert needs["features"] == []
        self.device = adapter.request_device_sync()  # no features, default limits
        self.buffers = [self._buffer(buffer) for buffer in self.plan["buffers"]]
        self.pipelines: dict[int, Any] = {}
        self.layouts: dict[int, Any] = {}
        self.readback = self.device.create_buffer(
            size=max(plan["result_bytes"] for plan in self.plan["plans"]),
            usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST,
        )

    # ---- a text -----------------------------------------------------------------------------

    def generate(self, prompt: list[int], n: int, kind: str = "plain", **params: Any) -> list[Any]:
        """Return the samples of `n` tokens after a prompt, as (words, statistics)."""
        limits, found = self.plan["limits"], []
        blocks = list(range(-(-(len(prompt) + n) // limits["block_tokens"])))
        self._write("block_tables", struct.pack(f"<{len(blocks)}I", *blocks))
        seen = bytearray(4 * self.plan["tensors"]["seen"]["shape"][1])
        for id in prompt:
            seen[id // 8] |= 1 << id % 8
        self._write("seen", bytes(seen))
        self._write("counts", bytes(4 * self.plan["tensors"]["counts"]["shape"][1]))
        most = limits["max_captured_rows"] if kind == "captured" else limits["max_rows"]
        for at in range(0, len(prompt), most):
            rows = [(position, prompt[position]) for position in range(at, len(prompt))][:most]
            sampled = at + len(rows) == len(prompt)
            found += self.step(kind, rows, [0] if sampled else [], params)
        for index in range(1, n):
            row = (len(prompt) + index - 1, FROM_GPU)
            found += self.step(kind, [row], [index], params)
        return found

    def step(
        self, kind: str, rows: list[tuple[int, int]], indices: list[int], params: dict[str, Any]
    ) -> list[Any]:
        """Run one step; `indices`: of the sample of its last row, if it has one."""
        plan = self.find(kind, len(rows), len(indices), rows[-1][0] + 1)
        samples = []
        for index in indices:
            sample = {"row": len(rows) - 1, "index": index, "top_p": 1.0} | params
            sample.setdefault("repetition_penalty", 1.0)
            samples.append(sample)
        self._write_step(rows, samples)
        return [self._read(result, plan) for result in self._run(plan)]

    def ask(
        self, kind: str, rows: list[tuple[int, int]], sampled: list[int], n_rows: int, keys: int
    ) -> dict[str, Any]:
        """Run a plan that answers an instrument, for `n_rows` rows and contexts of `keys` keys; the
        step itself has `rows` and samples of the rows `sampled`. Returns the plan."""
        plan = self.find(kind, n_rows, len(sampled), keys)
        if "keys" in plan.get("tensors", {}):
            buffer, offset, *_ = self.plan["views"][plan["tensors"]["keys"]["view"]]
            self.device.queue.write_buffer(
                self.buffers[buffer], offset, struct.pack("<2I", 0, keys)
            )
        self._write_step(rows, [{"row": row} for row in sampled])
        self._run(plan, reads=False)
        return plan

    def read(self, tensor: dict[str, Any]) -> bytes:
        """Return the contents of a tensor of a plan or of the file."""
        buffer, offset, size, *_ = self.plan["views"][tensor["view"]]
        return bytes(self.device.queue.read_buffer(self.buffers[buffer], offset, size))

    def _write_step(self, rows: list[tuple[int, int]], samples: list[dict[str, Any]]) -> None:
        layout, limits = self.plan["step"], self.plan["limits"]
        data = bytearray(layout["bytes"])
        struct.pack_into("<2I", data, 0, len(rows), len(samples))
        for i, sample in enumerate(samples):
            _pack(data, layout["samples_at"] + i * 4 * len(layout["sample"]), layout["sample"],
                  sample)  # fmt: skip
        for i, (position, token) in enumerate(rows):
            block = i if layout["staged_kv"] else position // limits["block_tokens"]
            row = {"slot": 0, "position": position, "block": block}
            row["token"] = layout["from_gpu"] if token == FROM_GPU else token
            _pack(data, layout["rows_at"] + i * 4 * len(layout["row"]), layout["row"], row)
        self._write("step", bytes(data))

    def find(self, kind: str, n_rows: int, n_samples: int, context: int) -> dict[str, Any]:
        lookup = self.plan["lookup"]
        rows = next(n for n in lookup["rows"] if n >= n_rows)
        samples = next(n for n in lookup["samples"] if n >= n_samples)
        splits = 1
        while rows <= lookup["split_rows"] and splits * lookup["split_tokens"] < context:
            splits *= 2
        key = (kind, rows, samples, splits)
        names = ("kind", "rows", "samples", "splits")
        return next(
            plan for plan in self.plan["plans"]
            if tuple(plan[name] for name in names) == key
            and not plan.get("interventions") and not plan.get("loras")
        )  # fmt: skip

    # ---- the device -------------------------------------------------------------------------

    def _buffer(self, entry: dict[str, Any]) -> wgpu.GPUBuffer:
        usage = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        usage |= wgpu.BufferUsage.UNIFORM if entry.get("uniform") else wgpu.BufferUsage.STORAGE
        buffer = self.device.create_buffer(size=entry["bytes"], usage=usage)
        if "weight" in entry:
            self.device.queue.write_buffer(buffer, 0, self.contents(entry))
        return buffer

    def contents(self, entry: dict[str, Any]) -> bytes:
        """Return what a buffer begins with."""
        weight = self.plan["weights"][entry["weight"]]
        row = weight["bytes"] // weight["n"]
        at = weight["at"] + entry.get("first", 0) * row
        rows = self.data[at : at + entry["rows"] * row]
        return interleave(weight["dtype"], row, rows, entry.get("interleaved", 1))

    def _run(self, plan: dict[str, Any], *, reads: bool = True) -> list[bytes]:
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for first, n in plan["dispatches"]:
            for label, kernel, grid, views, _ in self.plan["dispatches"][first : first + n]:
                pipeline, layout = self._pipeline(kernel)
                entries = [
                    {"binding": binding, "resource": self._resource(view)}
                    for (binding, _), view in zip(
                        self.plan["kernels"][kernel]["bindings"], views, strict=True
                    )
                ]
                group = self.device.create_bind_group(label=label, layout=layout, entries=entries)
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*grid)
        compute.end()
        if not reads:
            self.device.queue.submit([encoder.finish()])
            return []
        words = self.plan["results"]["words"]
        size = 4 * words * plan["samples"]
        if size:
            buffer, offset, _ = self._view("results")
            encoder.copy_buffer_to_buffer(self.buffers[buffer], offset, self.readback, 0, size)
        for kept in plan.get("kept", []):
            buffer, offset, n, *_ = self.plan["views"][kept["view"]]
            encoder.copy_buffer_to_buffer(
                self.buffers[buffer], offset, self.readback, kept["at"], n
            )
        self.device.queue.submit([encoder.finish()])
        if not plan["result_bytes"]:
            return []
        self.readback.map_sync(wgpu.MapMode.READ)
        data = bytes(self.readback.read_mapped(0, plan["result_bytes"]))
        self.readback.unmap()
        return [data] if plan["samples"] else []

    def _read(self, data: bytes, plan: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
        fields = self.plan["results"]["sample"]
        words = struct.unpack_from(_format(fields), data)
        kept = {
            each["name"]: data[each["at"] : each["at"] + 4 * each["parts"] * each["stride"]]
            for each in plan.get("kept", [])
        }
        return dict(zip((name for name, _ in fields), words, strict=True)), kept

    def _pipeline(self, kernel: int) -> tuple[Any, Any]:
        if kernel not in self.pipelines:
            entry = self.plan["kernels"][kernel]
            layout = self.device.create_bind_group_layout(
                entries=[
                    {
                        "binding": binding,
                        "visibility": wgpu.ShaderStage.COMPUTE,
                        "buffer": {"type": kind},
                    }
                    for binding, kind in entry["bindings"]
                ]
            )
            module = self.device.create_shader_module(code=self.plan["sources"][entry["source"]])
            self.pipelines[kernel] = self.device.create_compute_pipeline(
                layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={
                    "module": module,
                    "entry_point": "main",
                    "constants": {k: float(v) for k, v in entry["constants"].items()},
                },
            )
            self.layouts[kernel] = layout
        return self.pipelines[kernel], self.layouts[kernel]

    def _resource(self, view: int) -> dict[str, Any]:
        buffer, offset, size, *_ = self.plan["views"][view]
        return {"buffer": self.buffers[buffer], "offset": offset, "size": size}

    def _view(self, tensor: str) -> tuple[int, int, int]:
        buffer, offset, size, *_ = self.plan["views"][self.plan["tensors"][tensor]["view"]]
        return buffer, offset, size

    def _write(self, tensor: str, data: bytes) -> None:
        """Write the row of slot 0, or the whole tensor."""
        buffer, offset, _ = self._view(tensor)
        self.device.queue.write_buffer(self.buffers[buffer], offset, data)


def _format(fields: list[list[str]]) -> str:
    return "<" + "".join({"u32": "I", "f32": "f"}[kind] for _, kind in fields)


def _pack(data: bytearray, at: int, fields: list[list[str]], values: dict[str, Any]) -> None:
    struct.pack_into(_format(fields), data, at, *(values.get(name, 0) for name, _ in fields))
