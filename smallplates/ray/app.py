"""The Serve application: `serve run smallplates.ray.app:app`, or `serve deploy` with serve_config.yaml.

Settings are those of `smallplates.settings`, from the replica's environment: an application's
`runtime_env` in the config file, or the shell of `ray start`. BACKEND names the package, as for `make
run`.
"""

import importlib
import os

from ray import get_gpu_ids, get_runtime_context, serve
from starlette.types import ASGIApp

from smallplates.ray.middleware import RayMiddleware
from smallplates.ray.resources import replica_settings
from smallplates.ray.scaling import Load
from smallplates.settings import Settings
from smallplates.system import cpus
from smallplates.web.app import create_app
from smallplates.web.inference.service import InferenceService

CORES = 2.0
"""Of a replica, unless `ray_actor_options` says otherwise."""


@serve.ingress()
class Replica:
    """One engine and its web application."""

    service: InferenceService
    load: Load

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Returns the web application, which starts its engine. Raises ConfigurationError."""
        cores_of_ray = get_runtime_context().get_assigned_resources().get("CPU", 0.0)
        cores = cpus.grant(cores_of_ray)
        os.environ |= replica_settings(cores, get_gpu_ids(), os.environ)  # workers read it, too
        backend = importlib.import_module(os.environ.get("BACKEND", "fastapi_onnx")).BACKEND
        app = create_app(Settings.read(), backend)
        self.service = app.state.service
        self.load = Load(self.service)
        return RayMiddleware(app)

    async def check_health(self) -> None:
        """Raises ServingError unless a worker could answer now; Serve replaces a replica that does."""
        self.service.check_ready()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns what `scaling.follow_load` decides by."""
        return self.load.since_last_time()


settings = Settings.read()
classifier = serve.deployment(
    Replica,
    name="Classifier",
    ray_actor_options={"num_cpus": CORES},
    # the replica's own queue refuses, with its own 503: Serve's limit is not met before
    max_ongoing_requests=settings.max_connections,
    graceful_shutdown_timeout_s=settings.shutdown_timeout_s,
    graceful_shutdown_wait_loop_s=0.2,
    health_check_period_s=5,
    max_surge_percent=20,  # a new version's replicas start before the old ones' end
    logging_config={"enable_access_log": False},  # the service has its own
)
app = classifier.bind()
