"""Image classification: from an image file to pixels, and from logits to the best classes."""
