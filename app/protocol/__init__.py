"""Messages between server and page, the format of a saved replay, and the JSON schemas of both."""
