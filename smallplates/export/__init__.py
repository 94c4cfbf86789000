"""Makes model folders: from weights or a graph, in int8, and as Triton's repository."""
