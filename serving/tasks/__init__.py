"""Tasks: from a request's bytes to tensors, and from outputs to answers."""
