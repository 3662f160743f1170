"""Runs of requests: scheduling, KV blocks, and the thread that owns the device."""
