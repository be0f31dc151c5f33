"""Routes: they parse the request, call the engine and encode the response."""
