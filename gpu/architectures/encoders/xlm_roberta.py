"""XLM-RoBERTa (Conneau et al. 2020): RoBERTa for a hundred languages. Multilingual E5, BGE-M3 and
the multilingual paraphrase models are XLM-RoBERTas."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures.encoders import roberta

ARCHITECTURE = replace(roberta.ARCHITECTURE, model_type="xlm-roberta")
