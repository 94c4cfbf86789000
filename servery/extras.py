"""What to install where a package is missing."""

from importlib.util import find_spec

EXTRAS = {
    "pt": ("torch", "torchvision", "safetensors", "onnxscript"),
    "transformers": ("transformers",),
    "ray": ("ray",),
    "otel": ("opentelemetry",),
    "openvino": ("openvino",),
    "bench": ("hdrh", "matplotlib", "psutil", "requests", "rich", "pynvml"),
}
"""Packages, by their import names, that only an extra brings."""


def missing_extra(module: str) -> str | None:
    """Returns a sentence about the extra that brings a module; None where no extra does."""
    package = module.partition(".")[0]
    return next((sentence(extra) for extra, names in EXTRAS.items() if package in names), None)


def sentence(extra: str) -> str:
    """Returns how to install an extra."""
    return f"this needs the extra {extra}: pip install 'servery[{extra}]'"


def lacks(extra: str) -> bool:
    """Returns whether one of an extra's packages is missing."""
    return not all(map(find_spec, EXTRAS[extra]))
