"""Faults put into shaders and page, and the tests that must notice each (tests/test_mutants.py).

Python's are made by mutmut, see pyproject.toml.
"""
