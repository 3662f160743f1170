"""NumPy twins of every operation, and the measures they are held to."""
