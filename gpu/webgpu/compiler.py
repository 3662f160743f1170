"""Background compilation of pipelines; wgpu and drivers release the interpreter lock for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import wgpu

from gpu.errors import DeviceError
from gpu.webgpu import native
from gpu.webgpu.device import Device

MAX_THREADS = 4
"""A plan has about a dozen kernels."""


class Compiler:
    """Compiles shaders for one device, in order. Each source is parsed once, whatever its
    constants."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._modules: dict[str, Any] = {}
        self._parsing = Lock()
        n_threads = min(MAX_THREADS, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(n_threads, thread_name_prefix="compiler")

    def begin(
        self, name: str, source: str, constants: Mapping[str, float], layout: Any
    ) -> Future[Any]:
        """Return a future of the pipeline, whose one bind group has `layout`. Its result raises
        DeviceError, with the source line if the source does not compile."""
        return self._threads.submit(self._compile, name, source, constants, layout)

    def close(self) -> None:
        """Cancel what has not begun, and wait for the rest."""
        self._threads.shutdown(cancel_futures=True)

    def _compile(self, name: str, source: str, constants: Mapping[str, float], layout: Any) -> Any:
        device = self._device.wgpu
        try:
            return device.create_compute_pipeline(
                label=name,
                layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={
                    "module": self._module(name, source),
                    "entry_point": "main",
                    "constants": {k: float(v) for k, v in constants.items()},
                },
            )
        except wgpu.GPUError as error:
            raise DeviceError(f"{name}.wgsl with {dict(constants)} failed: {error}") from error

    def _module(self, name: str, source: str) -> Any:
        with self._parsing:
            if source not in self._modules:
                self._modules[source] = self._parse(name, source)
            return self._modules[source]

    def _parse(self, name: str, source: str) -> Any:
        device = self._device.wgpu
        try:
            module = device.create_shader_module(label=name, code=source)
        except wgpu.GPUError as error:
            raise DeviceError(f"{name}.wgsl does not compile: {error}") from error
        return module if self._device.checked else native.trusted_module(device, source, name)
