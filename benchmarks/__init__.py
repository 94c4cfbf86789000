"""Measurements; every speed is given as a ratio to something measured in the same run."""
