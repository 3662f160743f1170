"""Recorded plans of forward passes: recording and caching, buffers, reports and costs."""
