"""Recorded passes: made on demand, described, costed."""
