"""Architectures, one file each, written as an ordinary forward pass that records."""
