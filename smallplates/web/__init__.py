"""What runs in a web process: connections, protocols, the calls of models."""
