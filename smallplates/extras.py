"""What to install where a package is missing."""

from pathlib import Path

EXTRAS = {
    "pt": ("torch", "torchvision", "safetensors", "onnxscript"),
    "transformers": ("transformers",),
    "ray": ("ray",),
    "otel": ("opentelemetry",),
    "openvino": ("openvino",),
    "bench": ("hdrh", "matplotlib", "psutil", "requests", "rich", "pynvml"),
}
"""Packages, by their import names, that only an extra brings."""

PROJECT = "." if Path(__file__).parents[1].joinpath("pyproject.toml").exists() else "servery"
"""For pip: the checkout, or what is installed already. The project is not on PyPI."""


def missing_extra(module: str) -> str | None:
    """Returns a sentence about the extra that brings a module; None where no extra does."""
    package = module.partition(".")[0]
    extra = next((extra for extra, names in EXTRAS.items() if package in names), None)
    return f"this needs the extra {extra}: pip install '{PROJECT}[{extra}]'" if extra else None
