"""HTTP: the threaded server, the page, access control, and the routes under /api."""
