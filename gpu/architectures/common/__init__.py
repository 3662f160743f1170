"""Building blocks for the data files of architectures."""
