"""Strict readers of a model folder's files, and the user's cache folder."""
