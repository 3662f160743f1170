"""Speculative decoding: what drafts a step proposes, how many, and which are accepted
(`gpu.speculative.drafting.Drafting.verify`). A draft model is run by `gpu.engine.draft_model`. Host
logic only.
"""
