"""Operating system: usable cores, open files, signals, child processes, a parent process's death."""
