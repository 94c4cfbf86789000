"""What OpenAPI says about `/v2` beyond its paths: errors and the body of a request."""

import base64
from typing import Any

from pydantic import BaseModel

from serving.protocols.native_docs import CODES, EXAMPLE

OTHER_CODES = {
    400: "the request cannot be read, or is of another shape",
    404: "no such model or version",
}


class V2Error(BaseModel):
    """What went wrong, in words."""

    error: str


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for these statuses."""
    return {
        status: {
            "model": V2Error,
            "description": (text := OTHER_CODES.get(status) or CODES[status][0])[0].upper() + text[1:],
        }
        for status in statuses
    }


def infer_request() -> dict[str, Any]:
    """The JSON form, with a real picture; with binary tensors after it, a body is an octet stream."""
    tensor = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "datatype": {"enum": ["BYTES", "FP32"]},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "data": {"type": "array"},
            "parameters": {"type": ["object", "null"]},
        },
        "required": ["name", "datatype", "shape"],
    }
    output = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "parameters": {"type": ["object", "null"]}},
        "required": ["name"],
    }
    request = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "inputs": {"type": "array", "items": tensor, "minItems": 1, "maxItems": 1},
            "outputs": {"type": ["array", "null"], "items": output},
            "parameters": {
                "type": ["object", "null"],
                "description": "`timeout`, in microseconds, is another one.",
                "properties": {  # but for the timeout: who tries its range gets the 504 it asks for
                    "top_k": {"type": "integer", "minimum": 0, "description": "Best classes of a photo"},
                },
            },
        },
        "required": ["inputs"],
    }
    photo = base64.b64encode(EXAMPLE.read_bytes()).decode("ascii")
    example = {"name": "INPUT_IMAGE", "datatype": "BYTES", "shape": [1, 1], "data": [photo]}
    content = {
        "application/json": {"schema": request, "example": {"inputs": [example]}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    return {"requestBody": {"required": True, "content": content}}
