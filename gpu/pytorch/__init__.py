"""The same runner in PyTorch, on the CPU."""
