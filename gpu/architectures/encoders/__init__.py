"""Encoders: architectures that give vectors of texts and write none."""
