"""Infrastructure for HTTP requests: connections, limits, middleware, bodies, responses."""
