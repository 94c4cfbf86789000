"""`python -m smallplates.export.triton`: writes a Triton model repository from folders of image
classifiers.

Each folder becomes two models of the same network, such as `food_classifier`, which takes photos, and
`food_classifier_onnx`, which takes normalised tensors. Instances, batches, queue, deadline and limits
come from the service's own settings.
"""

import argparse
import sys
from pathlib import Path

from smallplates.errors import ConfigurationError
from smallplates.export.triton.build import build
from smallplates.settings import Settings

OUT = Path("runs", "triton-repository")


def main() -> int:
    """Writes the repository; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m smallplates.export.triton", description=__doc__)
    parser.add_argument(
        "--model",
        nargs="+",
        action="extend",
        default=[],
        metavar="FOLDER",
        help="folder, or NAME=FOLDER; overrides SERVING_MODELS and SERVING_MODEL_DIR",
    )
    backend = "what computes photos in Triton's Python backend; pt, on a GPU with SERVING_DEVICE=cuda"
    parser.add_argument("--backend", choices=("onnx", "pt"), default="onnx", help=backend)
    parser.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT}")
    arguments = parser.parse_args()
    settings = Settings(**({"models": arguments.model} if arguments.model else {}))
    try:
        build(arguments.out, settings, arguments.backend)
    except (ConfigurationError, OSError) as error:
        print(f"no repository was written: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"wrote {arguments.out}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
