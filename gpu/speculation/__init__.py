"""Speculative decoding: what drafts a step proposes, and how many. Host logic only."""
