"""What travels between server and page, and what a saved replay holds; their JSON schemas."""
