"""Steps on the GPU: submitted ahead, read behind."""
