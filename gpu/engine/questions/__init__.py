"""Questions about texts, one file each: what makes it answerable, and its answer in pieces."""
