"""Many clients that come, go, stall and vanish, against one server."""
