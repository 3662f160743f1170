"""Memory accesses of kernels, written down while they run, and what follows from them."""
