"""Every architecture computes the server's logits in the browser, from its export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from app.local.model_files import FORMAT, VERSION
from e2e.local.local_engine import LocalEnginePage, request
from gpu import Engine
from gpu.export.exporter import export_model
from gpu.interventions.messages import (
    NO_INTERVENTIONS,
    HeadFactor,
    Interventions,
    InterventionSpan,
    LayerFactor,
)
from gpu.load_options import LoadOptions
from tests.gpu.models import random_models
from tests.gpu.models.logit_checks import check_logits

CASES = tuple(dict.fromkeys((*random_models.ONE_OF_EACH, *random_models.ONE_OF_EACH_MOE)))
N_TOKENS = 40
LENGTHS = tuple(range(5, N_TOKENS + 1, 5))
"""Of the prompts whose last logits are compared: one may by chance have two likely tokens."""

LOGITS = """async () => {
  const { buffers, device, plan } = engine;
  const { buffer, offset } = buffers.tensor("logits");
  const size = plan.tensors.logits.shape[1] * 4;
  const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
  const readback = device.createBuffer({ size, usage });
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, offset, readback, 0, size);
  device.queue.submit([encoder.finish()]);
  await readback.mapAsync(GPUMapMode.READ);
  return [...new Float32Array(readback.getMappedRange()).slice(0, plan.model.vocab_size)];
}"""


INTERVENTIONS = Interventions(
    heads=(HeadFactor(0, 0, 0.0),), attention=(LayerFactor(1, 0.5),), mlp=(LayerFactor(0, -1.5),)
)


@pytest.mark.slow  # each compiles some twenty kernels
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_server(local: LocalEnginePage, tmp_path: Path, name: str) -> None:
    """Also under interventions."""
    folder, ids = random_models.folder(name), random_models.ids(N_TOKENS)
    write_manifest(tmp_path, export_model(folder, tmp_path, LoadOptions(dtype="f32", slots=2)))
    local.load(tmp_path)
    engine = Engine.load(folder, LoadOptions(dtype="f32", slots=2))
    try:
        for interventions in (NO_INTERVENTIONS, INTERVENTIONS):
            got = [logits_after(local, ids[:n], interventions) for n in LENGTHS]
            want = engine.logits(ids, (InterventionSpan(0, interventions),))
            check_logits("browser.logits.f32", np.stack(got), want[np.array(LENGTHS) - 1], name)
    finally:
        engine.close()


def logits_after(local: LocalEnginePage, ids: list[int], interventions: Interventions) -> Any:
    [events] = local.run(request(ids, temperature=0, max_tokens=1, interventions=interventions))
    assert events[-1]["reason"] == "length"
    return np.array(local.page.evaluate(LOGITS), np.float32)


def write_manifest(folder: Path, exported: Any) -> None:
    """Write the manifest of an export without a tokenizer."""
    chat = dict.fromkeys(("bos_token", "eos_token", "chat_template", "tool_template"))
    manifest = {
        "format": FORMAT, "version": VERSION, "name": folder.name, "files": {}, "defaults": {},
        "model": msgspec.to_builtins(exported), "chat": {**chat, "eos_ids": []},
    }  # fmt: skip
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
