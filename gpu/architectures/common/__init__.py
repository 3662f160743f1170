"""What the data files of architectures are written with."""
