"""Client process of `benchmarks stress`: sends requests one after the other, and prints latencies.

`python -m benchmarks.stress_client URL REQUESTS` reads the JSON body from standard input, and a key from
SERVING_API_KEY. It imports the standard library only, so that a hundred of them start quickly.
"""

import http.client
import json
import os
import sys
import time
from urllib.parse import urlsplit


def ask(url: str, body: bytes, requests: int) -> tuple[list[float], int]:
    """Returns the seconds of each answer 200, and the number of failed requests."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=60)
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("SERVING_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    latencies, failed = [], 0
    for _ in range(requests):
        started = time.perf_counter()
        try:
            connection.request("POST", "/predict", body, headers)
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            failed += 1
            continue
        if response.status == http.client.OK:
            latencies.append(time.perf_counter() - started)
        else:
            failed += 1
    connection.close()
    return latencies, failed


if __name__ == "__main__":
    answers = ask(sys.argv[1], sys.stdin.buffer.read(), int(sys.argv[2]))
    sys.stdout.write(json.dumps(answers))
