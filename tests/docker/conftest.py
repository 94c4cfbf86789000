"""Images, built once; `IMAGES` names those to build, by default all that need no GPU."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.docker import containers

ALL = "fastapi_onnx fastapi_pt flask_app jupyter"
CHOSEN = os.environ.get("IMAGES", ALL).split()
SERVICES = [name for name in CHOSEN if name.startswith("fastapi_")]


@pytest.fixture(scope="session")
def images() -> list[str]:
    """Names of the images that were built from the Dockerfiles; what runs beside them is there, too."""
    make = "docker/make_base_images.sh"
    containers.run(make, "python", seconds=containers.BUILD_S)
    with ThreadPoolExecutor() as executor:
        beside = executor.submit(
            containers.run, make, "haproxy", "prometheus", seconds=containers.BUILD_S
        )
        list(executor.map(containers.build, CHOSEN))
        beside.result()
    return CHOSEN


@pytest.fixture(scope="session", params=SERVICES)
def backend(request: pytest.FixtureRequest, images: list[str]) -> str:
    """Each of the services that were built."""
    assert request.param in images
    return str(request.param)
