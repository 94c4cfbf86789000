"""What runs in a worker: batches, warm-up, the choice of precision and runtime."""
