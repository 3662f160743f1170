"""The device: the only package that speaks to wgpu."""
