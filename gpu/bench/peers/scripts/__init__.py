"""What other Pythons run, in a folder of its own: Python looks for modules beside its script first,
and `gpu.bench.peers` has some of the very names that the scripts import."""
