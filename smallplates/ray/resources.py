"""Settings that fit what Ray has assigned to a replica: it does not own the machine."""

from collections.abc import Mapping, Sequence

from smallplates.engine import topology


def replica_settings(
    cores: int, gpus: Sequence[object], environment: Mapping[str, str]
) -> dict[str, str]:
    """Returns variables for a replica, without those that `environment` has set already.

    Workers, which count cores for themselves, read them. Ray hides the GPUs that are not assigned
    (CUDA_VISIBLE_DEVICES), so that the others are counted from 0.
    """
    settings = {"SERVING_IDLE_THREADS": str(min(topology.MAX_IDLE_THREADS, cores))}
    if gpus:
        settings["SERVING_DEVICES"] = ",".join(str(index) for index in range(len(gpus)))
    else:
        settings["SERVING_DEVICE"] = "cpu"
    return {name: value for name, value in settings.items() if name not in environment}
