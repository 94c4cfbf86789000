"""The ways into the service; each parses a request, calls `inference`, and formats the answer."""
