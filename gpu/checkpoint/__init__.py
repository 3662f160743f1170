"""Checkpoints: reading, packing, listing and uploading a model's weights."""
