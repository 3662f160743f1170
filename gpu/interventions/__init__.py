"""Interventions in the passes of a run: as requested, resolved, and active."""
