"""Protocols: each module parses its requests, calls `Classifier.classify`, and formats the answer."""
