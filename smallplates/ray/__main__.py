"""`python -m smallplates.ray fastapi_onnx`: replicas on a local Ray, a node for each, until SIGTERM."""

import argparse
import os
import queue
import signal
import sys

from ray import serve

from smallplates.ray.local import cluster
from smallplates.settings import Settings
from smallplates.system import cpus
from smallplates.system.signals import ending_signals


def main() -> int:
    """Serves with the arguments of `python -m smallplates.service`; the replicas share the machine's
    cores.
    """
    settings = Settings.read()
    parser = argparse.ArgumentParser(prog="python -m smallplates.ray", description=__doc__)
    parser.add_argument("package", help="fastapi_onnx or fastapi_pt")
    parser.add_argument("--host", default=settings.host)
    parser.add_argument("--port", type=int, default=settings.port)
    parser.add_argument("--replicas", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["BACKEND"] = arguments.package
    from smallplates.ray.app import classifier

    cores = max(1, cpus.usable() // arguments.replicas)
    one_a_node = classifier.options(
        num_replicas=arguments.replicas,
        max_replicas_per_node=1,
        ray_actor_options={"num_cpus": cores},
    )
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()  # a handler may interrupt its `get` and `put`
    with cluster(arguments.replicas, cores, arguments.host, arguments.port):
        for number in ending_signals():  # Ray has set its own, which end the process
            signal.signal(number, lambda number, _: signals.put(number))
        serve.run(one_a_node.bind())
        signals.get()
    return 0


if __name__ == "__main__":
    sys.exit(main())
