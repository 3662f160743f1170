"""Every op against its NumPy twin, and tiny models against a whole model in NumPy.

`tokenglass bench --report` runs `CHECKS` of `gpu.checks.ops` and `gpu.checks.models` on the device
of whoever calls it. The tests call the same functions with more cases.
"""
