"""What OpenAPI says about `/v2` beyond its paths: errors and the body of a request."""

from typing import Any

from pydantic import BaseModel

from serving.frontends.native_docs import CODES

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
    """The JSON form; with binary tensors after it, a body is an octet stream."""
    tensor = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "datatype": {"enum": ["BYTES", "FP32"]},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "data": {"type": "array"},
            "parameters": {"type": "object"},
        },
        "required": ["name", "datatype", "shape"],
    }
    output = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
        "required": ["name"],
    }
    request = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "inputs": {"type": "array", "items": tensor, "minItems": 1, "maxItems": 1},
            "outputs": {"type": "array", "items": output},
            "parameters": {
                "type": "object",
                "properties": {
                    "timeout": {"type": "integer", "minimum": 0, "description": "Microseconds"},
                    "top_k": {"type": "integer", "minimum": 0, "description": "Best classes of a photo"},
                },
            },
        },
        "required": ["inputs"],
    }
    content = {
        "application/json": {"schema": request},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    return {"requestBody": {"required": True, "content": content}}
