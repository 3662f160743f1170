"""Interventions in the passes of a run: as requested, resolved, and active.

On the wire their fields are `reach` and `reached`, and the page sets them with *Reach in*.
"""
