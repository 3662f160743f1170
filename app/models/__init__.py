"""Models: which exist, where their files come from, and whether they fit in memory."""
