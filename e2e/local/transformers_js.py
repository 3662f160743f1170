"""A page in which transformers.js runs a model on onnxruntime's WebGPU provider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from playwright.sync_api import Browser, Route

SITE = "http://localhost:2/"
"""Nobody listens there; the browser is given all files."""
PACKAGES = {
    "@huggingface/transformers": "@huggingface/transformers/dist/transformers.web.js",
    "onnxruntime-common": "onnxruntime-common/dist/esm/index.js",
    "onnxruntime-web/webgpu": "onnxruntime-web/dist/ort.webgpu.bundle.min.mjs",
}
"""Names that the modules import, and their files below node_modules."""
TYPES = {
    ".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json",
    ".wasm": "application/wasm",
}  # fmt: skip

LOAD = """async () => {
  const { AutoModelForCausalLM, env } = await import("@huggingface/transformers");
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = location.origin;
  env.useBrowserCache = false;
  env.backends.onnx.wasm.wasmPaths = `${location.origin}/node_modules/onnxruntime-web/dist/`;
  const options = { dtype: "fp32", device: "webgpu" }; // these name the file
  window.model = await AutoModelForCausalLM.from_pretrained("model", options);
}"""
WRITE = """async ([prompt, n]) => {
  const { Tensor } = await import("@huggingface/transformers");
  const shape = [1, prompt.length];
  const inputs = new Tensor("int64", BigInt64Array.from(prompt.map(BigInt)), shape);
  const attention_mask = new Tensor("int64", new BigInt64Array(prompt.length).fill(1n), shape);
  const times = []; // of the prompt, then of each token
  const streamer = { put: () => times.push(performance.now()), end() {} };
  const lengths = { max_new_tokens: n, min_new_tokens: n };
  const begun = performance.now();
  const found = await model.generate({
    inputs, attention_mask, ...lengths, do_sample: false, streamer, eos_token_id: [],
  });
  const ids = [...found.data].slice(prompt.length).map(Number);
  const [first, last] = [times[1], times.at(-1)];
  return { ids, firstMs: first - begun, restMs: last - first };
}"""


class TransformersJsPage:
    """A page with one model. `modules`: a folder node_modules with @huggingface/transformers;
    `model`: a folder with config.json and onnx/model.onnx. Raises playwright's Error with the
    message of transformers.js if the model cannot be loaded."""

    def __init__(self, browser: Browser, modules: Path, model: Path) -> None:
        self._folders = {"node_modules": modules, "model": model}
        self._page = browser.new_page()
        self._page.route(f"{SITE}**", self._answer)
        self._page.goto(SITE)
        self._page.evaluate(LOAD)

    def write(self, prompt: list[int], n: int) -> dict[str, Any]:
        """Return {ids, firstMs, restMs}: greedy ids, the time until the first and from there to
        the last."""
        found: dict[str, Any] = self._page.evaluate(WRITE, [prompt, n])
        return found

    def _answer(self, route: Route) -> None:
        first, _, rest = unquote(urlsplit(route.request.url).path)[1:].partition("/")
        if not first:
            imports = {name: f"/node_modules/{file}" for name, file in PACKAGES.items()}
            script = f'<script type="importmap">{json.dumps({"imports": imports})}</script>'
            route.fulfill(body=f"<!doctype html>{script}", content_type="text/html")
            return
        path = self._folders.get(first, Path()) / rest
        if first in self._folders and path.is_file():
            kind = TYPES.get(path.suffix, "application/octet-stream")
            route.fulfill(body=path.read_bytes(), content_type=kind)
        else:
            route.fulfill(status=404, body="not found")
