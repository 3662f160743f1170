"""Sequences, which of their rows run next, and the thread that owns the device."""
