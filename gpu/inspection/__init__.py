"""Answers to questions about a run, from what its tokens left."""
