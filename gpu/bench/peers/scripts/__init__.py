"""Child scripts of the peers. They have their own folder because Python looks for modules beside a
script first, and `gpu.bench.peers` has modules with the names that they import."""
