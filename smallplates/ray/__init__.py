"""The service on Ray Serve: one replica is one whole engine, web application and workers."""
