"""FastAPI with a handler for embeddings, in OpenAI's format: on ONNX Runtime, or sentence-transformers.

It runs a process for each core, with one thread for an inference. Texts of different requests are not
batched.
"""

import sys
from base64 import b64encode
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

from benchmarks.peers.common import CORES

MODEL_DIR, PORT, RUNTIME = sys.argv[1:4]

app = FastAPI()


def encoder() -> Any:  # either library's
    """Returns a function from texts to vectors, float32 [texts, width]."""
    if RUNTIME == "onnx":
        from benchmarks.peers.text import EmbedTexts

        return EmbedTexts(MODEL_DIR)
    import onnxruntime
    from sentence_transformers import SentenceTransformer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    arguments = {"provider": "CPUExecutionProvider", "session_options": options}
    return SentenceTransformer(MODEL_DIR, backend="onnx", model_kwargs=arguments).encode


if __name__ != "__main__":  # in the processes that answer
    encode = encoder()


class Request(BaseModel):
    """Texts."""

    input: str | list[str]


@app.post("/v1/embeddings")
def embeddings(request: Request) -> Response:
    """Returns the vectors in base64."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    data = [
        {"object": "embedding", "index": index, "embedding": b64encode(vector).decode()}
        for index, vector in enumerate(encode(texts))
    ]
    return Response(orjson.dumps({"object": "list", "data": data}), media_type="application/json")


if __name__ == "__main__":
    uvicorn.run(
        "benchmarks.peers.embed_server:app",
        port=int(PORT),
        log_level="warning",
        workers=CORES,
        timeout_worker_healthcheck=180,  # while they import
    )
