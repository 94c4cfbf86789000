"""Several web processes that share one port and the engines."""
