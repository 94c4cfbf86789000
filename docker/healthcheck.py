"""The health check of every image: exit code 0 when this container's own server answers 200.

Arguments: the environment variable with the port, the port without it, the path.
"""

import http.client
import os
import sys

TIMEOUT_S = 4


def main() -> int:
    """Asks once; never through a proxy."""
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
