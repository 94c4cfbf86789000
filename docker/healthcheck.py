"""The health check of every image: exit code 0 if this container's own server returns 200.

Arguments: the name of the environment variable with the port, the default port, and the path.
"""

import http.client
import os
import sys

TIMEOUT_S = 4


def main() -> int:
    """Sends one request, never through a proxy; returns the exit code."""
    variable, default, path = sys.argv[1:]
    port = int(os.environ.get(variable) or default)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return 0 if connection.getresponse().status == http.client.OK else 1
    except (OSError, http.client.HTTPException):
        return 1


if __name__ == "__main__":
    sys.exit(main())
