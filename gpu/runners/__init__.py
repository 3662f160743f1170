"""Execution of steps on the GPU: submitted ahead of those that are read."""
