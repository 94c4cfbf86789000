"""Operating system: usable cores, signals, child processes, the death of a parent process."""
