"""The service with ONNX Runtime as its backend."""

BACKEND = "fastapi_onnx.backend:OnnxBackend"
