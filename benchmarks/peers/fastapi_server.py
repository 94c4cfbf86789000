"""FastAPI with the handler of a tutorial, on PyTorch or ONNX Runtime with their default threads.

Not tuned: it shows what one gets by following a tutorial. FastAPI's documentation advises `def` for
work that blocks, and FastAPI runs it in a pool of 40 threads. As an `async def`, which blocks the event
loop, it answered 134 requests a second instead of 136 with ONNX Runtime and 49 instead of 36 with
PyTorch (two cores, 16 connections), but with a p99 of 0.7 s instead of 0.3 s, and 2.5 s instead of
0.5 s.
"""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

MODEL_DIR, PORT, RUNTIME = sys.argv[1:4]

app = FastAPI()
classify: Any  # of either class
if RUNTIME == "torch":
    from benchmarks.peers.eager import Eager

    classify = Eager(MODEL_DIR)
else:
    from benchmarks.peers.common import Classify

    classify = Classify(MODEL_DIR, "plain", threads=0)


class Request(BaseModel):
    """Image as base64."""

    image: str


class Answer(BaseModel):
    """Class of an image and its probability."""

    prediction: str
    probability: float


@app.post("/predict")
def predict(request: Request) -> Answer:
    """Classifies one image."""
    return Answer(**classify.text(request.image))


if __name__ == "__main__":
    uvicorn.run(app, port=int(PORT), log_level="warning")
