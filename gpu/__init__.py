"""The engine: real checkpoints through WGSL."""
