"""Operating system: usable cores, signals, the death of a parent process."""
