"""Calls of tools in the text of a model: the form of each template family, and its parser."""
