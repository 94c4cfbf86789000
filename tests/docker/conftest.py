"""Images, built once; `IMAGES` names those to build, by default all that need no GPU."""

import os

import pytest

from tests.docker import containers

ALL = "fastapi_onnx fastapi_pt flask_app jupyter"
CHOSEN = os.environ.get("IMAGES", ALL).split()
SERVICES = [name for name in CHOSEN if name.startswith("fastapi_")]


@pytest.fixture(scope="session")
def base_images() -> None:
    """What our images are built on and run beside, pulled or made here."""
    wanted = ("python", "haproxy", "prometheus")
    containers.run("docker/make_base_images.sh", *wanted, seconds=containers.BUILD_S)


@pytest.fixture(scope="session")
def images(base_images: None) -> list[str]:  # noqa: ARG001 wanted to be there
    """Names of the images that were built from the Dockerfiles."""
    for name in CHOSEN:
        containers.build(name)
    return CHOSEN


@pytest.fixture(scope="session", params=SERVICES)
def backend(request: pytest.FixtureRequest, images: list[str]) -> str:
    """Each of the services that were built."""
    assert request.param in images
    return str(request.param)
