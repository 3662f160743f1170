"""The engine in a process of its own: the client in the server, the process itself, the pipe
between them."""
