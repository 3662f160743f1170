"""Engines as deployments of Ray Serve, on the GPUs of one machine or of several."""
