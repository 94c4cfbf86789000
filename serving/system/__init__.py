"""What the operating system tells and is asked: cores, signals, a parent's death."""
