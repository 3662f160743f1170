"""Questions about a run and the answers to them."""
