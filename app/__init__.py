"""Tokenglass's web product: the playground page, its WebSocket and the OpenAI-shaped API."""
