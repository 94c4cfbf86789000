"""What surrounds every HTTP request: connections, bounds, middleware, bodies, responses."""
