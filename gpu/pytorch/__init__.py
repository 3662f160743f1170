"""A runner in PyTorch, on the CPU."""
