"""Autotuning: the fastest matmul settings of a device, measured once and stored."""
