"""Sizing of models from their configs alone: parameters, bytes, and bounds on devices."""
