"""Memory footprint, perplexity and expert scores, computed outside of serving."""
