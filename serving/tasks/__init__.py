"""What a request means: from bytes to tensors and back."""
