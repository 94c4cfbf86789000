"""Python of your own as a task: the class users extend, and both sides that run it."""
