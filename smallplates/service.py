"""`python -m smallplates.service fastapi_onnx`: one service with its engine, until SIGTERM.

The argument is a package with a `BACKEND` and an `app` module: `fastapi_onnx` or `fastapi_pt`.
"""

if __name__ == "__main__":
    from smallplates.system.signals import end_on_signals

    end_on_signals()

import argparse
import importlib
import os
import sys
from typing import Any

from smallplates.engine import topology
from smallplates.errors import ConfigurationError
from smallplates.settings import Settings
from smallplates.system.python import fill_standard_streams


def main() -> int:
    """Runs a service, with one web process or with several under `supervision.cluster.Cluster`."""
    fill_standard_streams()
    parser = argparse.ArgumentParser(prog="python -m smallplates.service", description=__doc__)
    parser.add_argument("package", help="fastapi_onnx or fastapi_pt")
    parser.add_argument("--host", help="overrides SERVING_HOST")
    parser.add_argument("--port", type=int, help="overrides SERVING_PORT")
    arguments = parser.parse_args()
    options = {k: v for k in ("host", "port") if (v := getattr(arguments, k)) is not None}
    try:
        return serve(arguments.package, options)
    except ConfigurationError as error:
        print(f"the service cannot start: {error}", file=sys.stderr)  # noqa: T201
        return 1


def serve(package: str, options: dict[str, Any]) -> int:
    """Serves; `options` override the environment's settings. Raises ConfigurationError."""
    settings = Settings.read(**options)
    os.environ |= {f"SERVING_{key.upper()}": str(value) for key, value in options.items()}
    try:
        _ = importlib.import_module(package).BACKEND
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # also of a name such as `.x`
        raise ConfigurationError(f"there is no package {package}: {error}") from error
    if topology.most_web_processes(settings) > 1:
        from smallplates.supervision.cluster import Cluster

        return Cluster(package, settings).run()
    from smallplates.web.server import Server

    Server(importlib.import_module(f"{package}.app").app, settings).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
