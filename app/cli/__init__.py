"""The `tokenglass` command."""
