"""What a model is: its folder, its description, its task's row, tensors and scores."""
