"""What to install where a package is missing."""

EXTRAS = {
    "pt": ("torch", "torchvision", "safetensors", "onnxscript"),
    "transformers": ("transformers",),
    "ray": ("ray",),
    "otel": ("opentelemetry",),
    "openvino": ("openvino",),
    "bench": ("hdrh", "matplotlib", "psutil", "requests", "rich", "pynvml"),
}
"""Packages, by their import names, that only an extra brings."""


def install(extra: str) -> str:
    """Returns what adds an extra. Not a name for pip: the project is not on PyPI."""
    return f"pip install '.[{extra}]' in a clone of the repository"


def missing_extra(module: str) -> str | None:
    """Returns a sentence about the extra that brings a module; None where no extra does."""
    package = module.partition(".")[0]
    extra = next((extra for extra, names in EXTRAS.items() if package in names), None)
    return f"this needs the extra {extra}: {install(extra)}" if extra else None
