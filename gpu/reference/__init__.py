"""NumPy twins of every operation, and measures of divergence."""
