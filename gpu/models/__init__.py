"""Architectures, one file each: a forward pass as in the paper, which records its dispatches."""
