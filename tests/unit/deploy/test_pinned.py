"""What the images are built of is pinned: packages by digests, base images by `make pin-images`."""

import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from smallplates.settings import ROOT

REQUIREMENTS = [
    *ROOT.glob("requirements*.txt"),
    *ROOT.glob("[a-z]*/requirements*.txt"),
    *ROOT.glob("smallplates/**/requirements.txt"),
]
BUILT_FROM = [
    *ROOT.glob("[a-z]*/Dockerfile"),
    *ROOT.glob("smallplates/**/Dockerfile"),
    *ROOT.glob("docker/*.yaml"),
]
BASE = re.compile(r"(?:ARG [A-Z]+_IMAGE=|^ *image: (?:\$\{[A-Z]+_IMAGE:-)?)([^$\s}]+)(?=}?$)", re.M)
DOCKER = """#!/bin/sh
for image; do :; done
printf 'sha256:%s\\n' "$(printf %s "$image" | sha256sum | cut -d ' ' -f 1)"
"""
"""A Docker whose registries have the SHA-256 of a tag as its digest."""


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_package_has_digests(path: Path) -> None:
    packages = re.split(r"\n(?=\S)", path.read_text().strip())
    assert [package for package in packages if "--hash=sha256:" not in package] == []


def base_images(folder: Path) -> list[str]:
    """The base images that the files name, in the files' order."""
    texts = [(folder / path.relative_to(ROOT)).read_text() for path in BUILT_FROM]
    return [name for text in texts for name in BASE.findall(text)]


def test_all_images_of_ours_have_the_same_python() -> None:
    assert len({name for name in base_images(ROOT) if name.startswith("python:")}) == 1


def test_a_release_pins_every_base_image(tmp_path: Path) -> None:
    for path in BUILT_FROM:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    tags = [name.partition("@")[0] for name in base_images(ROOT)]
    (tmp_path / "tools").mkdir()
    script = shutil.copy(ROOT / "tools" / "pin-images", tmp_path / "tools")
    (docker := tmp_path / "docker" / "docker").write_text(DOCKER)
    docker.chmod(0o755)
    for _ in range(2):  # a digest that is there is replaced
        subprocess.run([script], env={"PATH": f"{docker.parent}:/usr/bin:/bin"}, check=True)
        pinned = [f"{tag}@sha256:{sha256(tag.encode()).hexdigest()}" for tag in tags]
        assert base_images(tmp_path) == pinned
