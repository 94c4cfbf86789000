"""Starts, watches and replaces workers and web processes."""
