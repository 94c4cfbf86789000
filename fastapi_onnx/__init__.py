"""Service with the ONNX Runtime backend: `python -m smallplates.service fastapi_onnx`."""

import os

# ONNX Runtime reports to its makers unless this is set before the import; a user may set 0
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

BACKEND = "fastapi_onnx.backend:OnnxBackend"
