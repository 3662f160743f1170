"""Retrieval: documents in chunks, their vectors by the embedding model, and an index of these."""
