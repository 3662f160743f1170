"""Training of LoRA adapters by PEFT, in a process of its own."""
