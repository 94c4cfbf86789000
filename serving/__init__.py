"""The engine that both services share; it imports neither torch nor onnxruntime."""

__version__ = "0.1.0"
