"""A model's plans and weights as files, for engines outside of Python: docs/plan-format.md."""
