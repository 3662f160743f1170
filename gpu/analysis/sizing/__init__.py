"""What a model would take, from its config: parameters, bytes, and bounds on devices."""
