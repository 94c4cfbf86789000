"""The FastAPI application with ONNX Runtime.

`uvicorn fastapi_onnx.app:app` serves it. `python -m smallplates.service fastapi_onnx` serves it, too, or
several web processes with such an application, and stops without losing requests.

A photo that is sent to `POST /predict` takes this way:

1. `predict` in `smallplates/web/dialects/native.py`, a route of `app`, reads the body: base64 in JSON, a
   form, or the file itself.
2. `ServedModel.predict` in `smallplates/web/inference/served_model.py` decodes the photo in this process
   and puts its pixels into shared memory. They wait there for a worker.
3. A worker, which is a process of its own, forms a batch of them and calls `OnnxBackend.infer`
   in `fastapi_onnx/backend.py`, which runs the graph `model.onnx`.
4. The class with the highest score and its probability are the answer.
"""

from fastapi import FastAPI

from fastapi_onnx import BACKEND  # the backend's class, which only the workers import
from smallplates.settings import Settings
from smallplates.web.app import create_app

settings = Settings()  # from SERVING_... variables; SERVING_MODEL_DIR is models/food11 by default

app: FastAPI = create_app(settings, BACKEND)
