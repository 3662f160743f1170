"""LoRA adapters as PEFT saves them: read, judged against their base, stacked for its matrices."""
