"""How a model directory is made: from zipped photos, or from weights of one's own."""
