"""Encoders: architectures that compute vectors of texts and do not write."""
