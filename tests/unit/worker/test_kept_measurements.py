"""`smallplates.worker.kept_measurements`: what a start has measured, for the next one."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.system import cpus
from smallplates.worker import kept_measurements
from smallplates.worker.kept_measurements import dependencies, digest, restore, save
from smallplates.worker.shared_choice import shared_choice
from tests import exports

FOUND = {"choice": [{"runtime": "one", "ms": 1.5}], "layout": [1, 2, "why"]}


def refused() -> Any:
    """Stands for what must not be asked."""
    raise AssertionError


def scratch_of(tmp_path: Path, number: int) -> Path:
    folder = tmp_path / f"scratch-{number}"
    folder.mkdir()
    return folder


def measured(tmp_path: Path) -> Path:
    """The file that a start writes."""
    scratch, folder = scratch_of(tmp_path, 0), tmp_path / "cache" / "deep"
    for name, value in FOUND.items():
        shared_choice(scratch, name, lambda value=value: value)  # type: ignore[misc]
    shared_choice(scratch, "signature", lambda: "not kept")
    save(folder, "key", scratch)
    (path,) = folder.iterdir()
    shutil.rmtree(scratch)
    return path


def test_another_start_gets_what_one_has_measured(tmp_path: Path) -> None:
    path, scratch = measured(tmp_path), scratch_of(tmp_path, 1)
    with capture_logs() as logs:
        assert restore(path.parent, "another", scratch) is None
        assert list(scratch.iterdir()) == []
        assert restore(path.parent, "key", scratch) == json.loads(path.read_bytes())["time"]
    assert logs == []
    assert {name: shared_choice(scratch, name, refused) for name in FOUND} == FOUND
    assert shared_choice(scratch, "signature", lambda: "read") == "read"


def altered(text: str) -> str:
    return text.replace("1.5", "0.5")


def of_another(text: str) -> str:
    """A file whose digest is right, but which was made for something else."""
    content = json.loads(text)
    content["sha256"] = digest(["another", content["time"], content["choices"]])
    return json.dumps(content)


@pytest.mark.parametrize(
    "damage", [altered, of_another, lambda text: text[:-9], lambda _: "", lambda _: "[]", lambda _: "{}"]
)
def test_a_damaged_or_foreign_file_is_ignored_and_written_again(
    tmp_path: Path, damage: Callable[[str], str]
) -> None:
    path = measured(tmp_path)
    right = path.read_text()
    path.write_text(damage(right))
    scratch = scratch_of(tmp_path, 1)
    with capture_logs() as logs:
        assert restore(path.parent, "key", scratch) is None
    assert [(log["event"], log["path"]) for log in logs] == [
        ("kept measurements are ignored", str(path))
    ]
    assert list(scratch.iterdir()) == []
    again = json.loads(measured(tmp_path).read_text())
    assert again["choices"] == json.loads(right)["choices"]


def test_what_would_leave_the_folder_is_not_written(tmp_path: Path) -> None:
    path = measured(tmp_path)
    content = json.loads(path.read_text())
    content["choices"]["../outside"] = "x"
    content["sha256"] = digest(["key", content["time"], content["choices"]])
    path.write_text(json.dumps(content))
    assert restore(path.parent, "key", scratch_of(tmp_path, 1)) == content["time"]
    assert not (tmp_path / "outside").exists()


def test_a_folder_that_cannot_be_written_is_only_warned_of(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with capture_logs() as logs:
        assert restore(tmp_path / "file" / "cache", "key", tmp_path) is None
        save(tmp_path / "file" / "cache", "key", tmp_path)
    assert [(log["event"], log["log_level"]) for log in logs] == [
        ("measurements cannot be kept", "warning")
    ]


def test_what_a_full_disk_has_cut_is_not_kept(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path, 0)
    (scratch / "choice").touch()
    with capture_logs() as logs:
        save(tmp_path / "cache", "key", scratch)
    assert [log["event"] for log in logs] == ["measurements cannot be kept"]


def test_a_full_disk_keeps_no_part_of_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    (folder / f"{digest('key')}.json" / "in the way").mkdir(parents=True)
    with capture_logs() as logs:
        save(folder, "key", scratch_of(tmp_path, 0))
    assert [log["event"] for log in logs] == ["measurements cannot be kept"]
    assert len(list(folder.iterdir())) == 1


def change_file(name: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    """Adds a byte to a file of the model, or makes it."""

    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        with (folder / name).open("ab") as file:
            file.write(b" ")

    return change


def other_cores(_: Path, patch: pytest.MonkeyPatch) -> None:
    more = cpus.usable() + 1
    patch.setattr(cpus, "usable", lambda: more)


def other_processor(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cpus, "identity", lambda: ["flags : none"])


def other_version(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept_measurements, "__version__", "0.0.1")


def without_a_library(_: Path, patch: pytest.MonkeyPatch) -> None:
    """NumPy's version is not known."""
    patch.setattr(kept_measurements, "PACKAGES", kept_measurements.PACKAGES[1:])


@pytest.mark.parametrize(
    "change",
    [
        change_file("model.onnx"),
        change_file("tokenizer.json"),
        change_file("model_quantized.json"),
        lambda folder, _: (folder / "config.json").write_text(
            (folder / "config.json").read_text().replace("NEGATIVE", "WORST")
        ),
        lambda _, patch: patch.setenv("SERVING_PRECISION", "fp32"),
        lambda _, patch: patch.setenv("SERVING_MAX_BATCH_SIZE", "4"),
        lambda _, patch: patch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2"),
        other_cores,
        other_processor,
        other_version,
        without_a_library,
    ],
)
def test_other_files_machines_versions_and_settings_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    folder = exports.saved(tmp_path / "model", exports.word_piece(), {})

    def key() -> str:
        return digest(dependencies(Model.read(folder), [folder / "model.onnx"], Settings()))

    before = key()
    monkeypatch.setenv("SERVING_PORT", "9")  # measurements do not depend on it
    os.utime(folder / "model.onnx", (1, 1))
    shutil.copytree(folder, tmp_path / "elsewhere" / "model")
    assert key() == before
    folder = tmp_path / "elsewhere" / "model"
    assert key() == before
    change(folder, monkeypatch)
    assert key() != before
