"""Prompts: chat templates, tokenizers, message spans, and the text of token ids."""
