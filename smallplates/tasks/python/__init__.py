"""Python tasks: the class that users extend, and the code that runs it in worker and web process."""
