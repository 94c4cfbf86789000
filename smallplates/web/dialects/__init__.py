"""The protocols; each parses requests, calls `inference` and formats the answers."""
