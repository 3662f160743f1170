"""Mutation check: break one thing at a time and see which test notices.

`python -m tests.mutants` copies the checkout's tracked files to a temporary folder, applies one
mutant there, and runs the tests that should notice it. A mutant that no test notices is a hole in
the tests. The table of docs/mutants.md is written by it; tests/test_mutants.py keeps both true to
the code.
"""
