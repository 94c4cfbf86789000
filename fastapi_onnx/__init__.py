"""The service with ONNX Runtime as its backend."""

import os

# ONNX Runtime reports to its makers unless told not to before it is loaded; who wants that sets 0
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

BACKEND = "fastapi_onnx.backend:OnnxBackend"
