"""Execution of steps on the GPU, with several in flight."""
