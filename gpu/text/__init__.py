"""Text to tokens and back, and where text stops."""
