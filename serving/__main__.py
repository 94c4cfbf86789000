"""`python -m serving fastapi_onnx`: one service with its engine, until SIGTERM.

The argument is a package with a `BACKEND` and an `app` module: `fastapi_onnx` or `fastapi_pt`.
"""

import argparse
import importlib
import os
import sys

from serving.engine import layout
from serving.errors import ConfigurationError
from serving.settings import Settings


def main() -> int:
    """Serves with one web process, or with several under `cluster.Cluster`."""
    parser = argparse.ArgumentParser(prog="python -m serving", description=__doc__)
    parser.add_argument("package", help="fastapi_onnx or fastapi_pt")
    parser.add_argument("--host", help="overrides SERVING_HOST")
    parser.add_argument("--port", type=int, help="overrides SERVING_PORT")
    arguments = parser.parse_args()
    given = {k: v for k in ("host", "port") if (v := getattr(arguments, k)) is not None}
    settings = Settings(**given)
    given["web_processes"] = web_processes = layout.web_processes(settings)
    settings = settings.model_copy(update={"web_processes": web_processes})
    os.environ |= {f"SERVING_{key.upper()}": str(value) for key, value in given.items()}
    try:
        if web_processes > 1:
            from serving.cluster import Cluster

            return Cluster(arguments.package, settings).run()
        from serving.server import Server

        server = Server(importlib.import_module(f"{arguments.package}.app").app, settings)
    except ConfigurationError as error:
        print(f"the service cannot start: {error}", file=sys.stderr)  # noqa: T201
        return 1
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
