"""Image classification: decode, resize, and the classes of logits."""
