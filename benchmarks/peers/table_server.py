"""FastAPI with the handler of a tutorial for rows, checked by pydantic: a process for each core.

The handler is an `async def`: its work takes microseconds, and a thread's two switches more.
"""

import sys
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field

from benchmarks.peers.common import CORES

MODEL_DIR, PORT = sys.argv[1:3]

app = FastAPI()
classify: Any = None
if __name__ != "__main__":  # in the processes that answer
    from benchmarks.peers.table import ClassifyRows

    classify = ClassifyRows(MODEL_DIR)


class Input(BaseModel):
    """A row."""

    name: Literal["X"]
    datatype: Literal["FP32"]
    shape: Annotated[list[int], Field(min_length=2, max_length=2)]
    data: list[float]


class Request(BaseModel):
    """A request of one row."""

    inputs: Annotated[list[Input], Field(min_length=1, max_length=1)]


class Output(BaseModel):
    """The classes' probabilities."""

    name: str
    datatype: str
    shape: list[int]
    data: list[float]


class Answer(BaseModel):
    """The answer."""

    outputs: list[Output]


@app.post("/v2/models/table/infer")
async def infer(request: Request) -> Answer:
    """Classifies one row."""
    return Answer(**classify.tensor(request.inputs[0]))


if __name__ == "__main__":
    uvicorn.run(
        "benchmarks.peers.table_server:app",
        port=int(PORT),
        log_level="warning",
        workers=CORES,
        timeout_worker_healthcheck=60,  # while they import
    )
