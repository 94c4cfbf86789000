"""Every image by itself: small, without what attackers like, and fit for a narrow container."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import requests

from tests.docker import traffic
from tests.docker.containers import HARDENED, container, image, inspect, run, wait_until
from tests.pictures import jpeg
from tests.servers import ROOT, metric

pytestmark = [pytest.mark.docker, pytest.mark.timeout(3000)]
MEGABYTE = 1_000_000
KILLED = 128 + signal.SIGKILL
LARGEST_MB = {
    "fastapi_onnx": 590,
    "fastapi_onnx-gpu": 2700,
    "fastapi_pt": 4600,
    "flask_app": 250,
    "jupyter": 1100,
}
NARROW = ("--shm-size", "64m", "--user", "10001:10001", "--pids-limit", "256")
MEMORY = {"fastapi_pt": "2g"}  # of which each instance takes 700 MB
TOOLS = "import shutil; print([n for n in ('pip', 'gcc', 'cc', 'make') if shutil.which(n)])"


def test_images_are_small_and_say_what_they_are(images: list[str]) -> None:
    for name in images:
        described = inspect(image(name))
        assert described["Size"] < LARGEST_MB[name] * MEGABYTE, name
        labels, config = described["Config"]["Labels"], described["Config"]
        assert labels["org.opencontainers.image.revision"] == "tested"
        assert labels["org.opencontainers.image.licenses"] == "MIT"
        assert config["User"] == "10001:10001"
        assert config["Healthcheck"]["Test"][0] == "CMD"


def test_no_compiler_no_pip_and_nothing_to_write_to(images: list[str]) -> None:
    for name in images:
        command = ("docker", "run", "--rm", "--network", "none", image(name))
        assert run(*command, "python", "-c", TOOLS) == "[]"
        as_root = (*command[:3], "--user", "0", *command[3:])
        assert run(*as_root, "sh", "-c", "find / -xdev -name '*.whl' -o -xdev -path '*/.cache/*'") == ""
        writable = "find /app /opt /usr -writable ! -type l"
        assert run(*command, "sh", "-c", writable) == ""


def test_a_narrow_container_is_enough(backend: str) -> None:
    """64 MB of /dev/shm, nothing to write to, no rights, and no temporary folder."""
    limits = (*NARROW, "--memory", MEMORY.get(backend, "1g"))
    settings = ("--env", "SERVING_INSTANCES=2", "--env", "SERVING_WEB_PROCESSES=2")
    with container(backend, 8000, *limits, *settings) as (_, url):
        answers = [requests.post(f"{url}/predict", jpeg(), timeout=30) for _ in range(20)]
        assert {answer.status_code for answer in answers} == {200}
        form = {"image": ("photo.png", traffic.slow_photo())}  # which others would spool to a file
        assert requests.post(f"{url}/predict", files=form, timeout=30).status_code == 200
        assert requests.get(f"{url}/model", timeout=10).json()["instances"] == 2
        assert metric(url, "serving_web_processes") == 2
        assert metric(url, "serving_web_cpu_seconds_total") > 0


def test_several_model_folders(backend: str, tmp_path: Path) -> None:
    """One in the image, and one that is mounted."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "models" / "food11", copy)
    described = json.loads((copy / "model.json").read_text()) | {"name": "copy", "aliases": {}}
    (copy / "model.json").write_text(json.dumps(described))
    tmp_path.chmod(0o755)
    mounted = ("--volume", f"{tmp_path}:/models:ro", "--memory", MEMORY.get(backend, "1g"))
    settings = ("SERVING_MODELS=models/food11,/models/copy", "SERVING_INSTANCES=1")
    variables = [part for setting in settings for part in ("--env", setting)]
    with container(backend, 8000, *NARROW, *mounted, *variables) as (_, url):

        def states() -> dict[str, str]:
            rows = requests.get(f"{url}/model", timeout=10).json()["models"]
            return {row["name"]: row["state"] for row in rows}

        wait_until(lambda: states() == {"food11": "ready", "copy": "ready"}, "both models")
        for path in ("predict", "predict/food11", "predict/copy"):
            assert requests.post(f"{url}/{path}", jpeg(), timeout=30).status_code == 200


@pytest.mark.parametrize("cpus", ["0.5", "1"])
def test_instances_and_threads_follow_the_cpu_quota(backend: str, cpus: str) -> None:
    with container(backend, 8000, *NARROW, "--cpus", cpus) as (identity, url):
        assert metric(url, "serving_cores") == 1
        model = requests.get(f"{url}/model", timeout=10).json()
        assert (model["instances"], model["idle_threads"]) == (1, None)  # no second session on one core
        assert run("docker", "top", identity).count("smallplates.worker.process") == 1


def test_numpy_starts_no_threads(backend: str) -> None:
    count = "import os, numpy; print(len(os.listdir('/proc/self/task')))"
    assert run("docker", "run", "--rm", *HARDENED, image(backend), "python", "-c", count) == "1"


def test_health_is_docker_s_own_view(backend: str) -> None:
    options = ("--env", "SERVING_INSTANCES=1", "--health-interval", "1s")
    with container(backend, 8000, *NARROW, *options) as (identity, _):
        wait_until(
            lambda: inspect(identity)["State"]["Health"]["Status"] == "healthy", "a healthy container"
        )


def test_stop_answers_what_was_taken_on(backend: str) -> None:
    with container(backend, 8000, *NARROW, "--env", "SERVING_INSTANCES=1") as (identity, url):
        with traffic.under_way(f"{url}/predict", url, count=16, least=8) as answers:
            run("docker", "stop", "-t", "40", identity)
            statuses = [answer.result() for answer in answers]
        assert statuses.count(200) >= 8
        assert inspect(identity)["State"]["ExitCode"] == 0


def test_a_stop_right_after_the_start_is_heard(images: list[str]) -> None:
    for name in images:
        identity = run("docker", "run", "--detach", "--init", *HARDENED, image(name))
        try:
            run("docker", "stop", "-t", "20", identity)
            assert inspect(identity)["State"]["ExitCode"] != KILLED, name
        finally:
            run("docker", "rm", "--force", "--volumes", identity)


def test_process_1_hears_of_a_stop_while_it_starts(images: list[str]) -> None:
    for name in sorted({"fastapi_onnx", "fastapi_pt", "flask_app"} & set(images)):
        identity = run("docker", "run", "--detach", *HARDENED, image(name))
        try:
            wait_until(lambda identity=identity: handles_sigterm(identity), name)  # type: ignore[misc]
            run("docker", "stop", "-t", "20", identity)
            assert inspect(identity)["State"]["ExitCode"] == 0, name
        finally:
            run("docker", "rm", "--force", "--volumes", identity)


def handles_sigterm(identity: str) -> bool:
    """Whether a container's process 1 does."""
    status = run("docker", "exec", identity, "cat", "/proc/1/status")
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_without_a_gpu_cuda_is_refused_in_words(backend: str) -> None:
    command = ("docker", "run", "--rm", *HARDENED, "--env", "SERVING_DEVICE=cuda", image(backend))
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1\n.*(CUDA cannot be used|no NVIDIA driver)"):
        run(*command)
