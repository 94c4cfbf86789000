"""The wheel, installed from a folder of wheels into an empty environment; `make test-wheel`.

Nothing of the checkout is on its path, and no index of packages is asked. Runs where
SERVING_TEST_WHEELHOUSE names the folder.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import pytest

from benchmarks import text_model
from smallplates.cli import processes
from tests import pictures, servers
from tests.unit.cli import stand_in_hub

WHEELHOUSE = os.environ.get("SERVING_TEST_WHEELHOUSE", "")
pytestmark = [
    pytest.mark.skipif(not WHEELHOUSE, reason="no folder of wheels: make test-wheel makes one"),
    pytest.mark.timeout(600),
]
UV = str(servers.ROOT / ".venv" / "bin" / "uv")
PACKAGES = {"smallplates", "fastapi_onnx", "fastapi_pt", "flask_app"}


@pytest.fixture(scope="module")
def wheel() -> Path:
    (path,) = Path(WHEELHOUSE).resolve().glob("smallplates-*.whl")
    return path


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([UV, "venv", "--quiet", place], check=True)
    options = ["--no-index", "--find-links", str(wheel.parent), "--python", str(place)]
    options += ["--refresh-package", "smallplates"]  # uv may know another wheel of this version
    subprocess.run([UV, "pip", "install", "--quiet", *options, "smallplates"], check=True)
    return place / "bin" / "smallplates"


def run(command: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command, *arguments],
        cwd=command.parent,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@contextmanager
def serving(command: Path, *arguments: str, **environment: str) -> Iterator[tuple[str, str]]:
    """The URLs of page and API, which ends with exit code 0; the first is empty without a page."""
    with subprocess.Popen(
        [command, "serve", "--port=0", "--ui-port=0", *arguments],
        cwd=command.parent,
        env={"PATH": "/usr/bin:/bin", "SERVING_LOG_LEVEL": "warning", **environment},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            page = ""
            for line in process.stdout:
                if "  page  " in line:
                    page = line.split()[1]
                if "  API   " in line:
                    yield page, line.split()[1].removesuffix("/docs")
                    break
            else:
                raise AssertionError("it did not start")
        finally:
            process.terminate()
        assert process.wait(60) == 0


def test_what_is_in_it(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    folders = {name.partition("/")[0] for name in names}
    assert {name for name in folders if not name.endswith(".dist-info")} == PACKAGES
    assert "smallplates/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    weights = {name for name in names if name.startswith("smallplates/food11/1/")}
    assert weights == {f"smallplates/food11/1/{kind}.onnx" for kind in ("model", "model_quantized")}


def test_the_same_files_make_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns(".git", ".venv*", "runs", "__pycache__", ".*_cache")
    shutil.copytree(servers.ROOT, tmp_path / "copy", ignore=left_out, copy_function=shutil.copy)
    places = [str(tmp_path / "wheel"), str(tmp_path / "copy")]
    build = [UV, "build", "--quiet", "--wheel", "--out-dir", *places]
    subprocess.run(build, check=True, umask=0o077)
    (built,) = (tmp_path / "wheel").glob("*.whl")
    assert built.read_bytes() == wheel.read_bytes()


def test_it_serves_the_shipped_model_and_its_page(command: Path, tmp_path: Path) -> None:
    (photo := tmp_path / "photo.jpg").write_bytes(pictures.jpeg())
    with serving(command) as (page, api):
        asked = run(command, "ask", photo, "--url", api, "--top-k", "2")
        assert asked.stdout.startswith(f"{photo}: ")
        assert asked.returncode == 0
        assert processes.get(page) is not None
        assert run(command, "ask", tmp_path / "none", "--url", api).returncode == 1


def test_it_serves_an_export_of_the_hub(command: Path, tmp_path: Path) -> None:
    text_model.make(folder := tmp_path / "export", width=48, layers=2)
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    with (
        stand_in_hub.running(files) as hub,
        serving(command, "org/mood", HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "cache")) as (_, api),
    ):
        asked = run(command, "ask", "--text", "the soup was warm", "--url", api, "--model", "mood")
        assert asked.stdout.startswith("the soup was warm: ")
        assert asked.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["export", "torchvision", "--help"], "Usage: smallplates export torchvision"),
        (["quantize", "--help"], "Usage: smallplates quantize"),
        (["check", "--help"], "Usage: smallplates check"),
        (["load", "--help"], "smallplates load: this needs the extra bench: pip install '.[bench]'"),
        (["serve", "--backend=pt"], "smallplates serve: this needs the extra pt: pip install '.[pt]'"),
        (["serve", "--ray"], "smallplates serve: this needs the extra ray: pip install '.[ray]'"),
    ],
)
def test_every_command_without_extras(command: Path, arguments: list[str], words: str) -> None:
    done = run(command, *arguments)
    said = done.stdout + done.stderr
    assert said.startswith(words)
    assert done.returncode == ("this needs" in words)
