"""The page's WebSocket: its messages, its runs, and the questions it asks."""
