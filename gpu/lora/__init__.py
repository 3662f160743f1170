"""LoRA adapters as PEFT saves them: reading, validation, and stacking for the device."""
