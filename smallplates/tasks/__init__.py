"""Tasks: from a request's fields to tensors, and from outputs to answers."""
