"""Static sites: a model, its plans and the page, for any file server."""
