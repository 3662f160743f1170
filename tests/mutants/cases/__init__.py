"""All mutants, by room."""

from tests.mutants.cases import (
    app,
    attention,
    browser,
    checkpoint,
    engine,
    experts,
    export,
    kv_blocks,
    kv_shaders,
    lines,
    matmul,
    page,
    replicas,
    runners,
    sampler_shaders,
    strangers,
    upstream,
)
from tests.mutants.mutant import Mutant

ROOMS: dict[str, tuple[Mutant, ...]] = {
    "Attention shaders": attention.MUTANTS,
    "KV cache shaders": kv_shaders.MUTANTS,
    "Norm and matmul shaders": matmul.MUTANTS,
    "Expert, LoRA, intervention and statistics shaders": experts.MUTANTS,
    "Sampler shaders": sampler_shaders.MUTANTS,
    "Engine": engine.MUTANTS,
    "KV blocks": kv_blocks.MUTANTS,
    "Runner and answers": runners.MUTANTS,
    "Exports": export.MUTANTS,
    "Files of a model": checkpoint.MUTANTS,
    "Server": app.MUTANTS,
    "Connections and the engine's process": lines.MUTANTS,
    "Several engines": replicas.MUTANTS,
    "An upstream server": upstream.MUTANTS,
    "Strangers' templates and tokenizers, and questions": strangers.MUTANTS,
    "Page": page.MUTANTS,
    "Engine in the browser": browser.MUTANTS,
}
