"""The service with ONNX Runtime as its backend."""
