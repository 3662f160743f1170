"""WebGPU: devices, buffers, kernels, plans. The only package that imports wgpu."""
