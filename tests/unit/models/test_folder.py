"""`smallplates.models.folder` and `smallplates.system.cpus`: what is read from files, and what is
refused.
"""

import errno
import hashlib
import json
import math
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model, configured_models, files_of
from smallplates.settings import Settings
from smallplates.system import cpus

STATISTICS: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
DESCRIPTION: dict[str, Any] = {
    "name": "tiny",
    "version": "1",
    "labels": ["a", "b"],
    "image": {"resize": [224, 224], **STATISTICS},
    "files": {"1/model.onnx": "0" * 64},
}


def write(folder: Path, **changes: object) -> Path:
    (folder / "model.json").write_text(json.dumps({**DESCRIPTION, **changes}))
    return folder


def digest_of(folder: Path) -> str:
    return hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()


def test_models_may_be_named_by_their_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = folders(tmp_path, "one", "two")
    alone = Settings(model_dir=one, model_sha256=[digest_of(one)])
    (model,) = configured_models(alone).values()
    assert model.labels == ["a", "b"]
    assert model.description.pipeline.output_size == (224, 224)
    places = [str(one), f"second={two}"]
    listed = {"one": digest_of(one), "second": digest_of(two)}
    monkeypatch.setenv("SERVING_MODEL_SHA256", ", ".join(f"{k}={v}" for k, v in listed.items()))
    assert list(configured_models(Settings(models=places))) == ["one", "second"]
    with pytest.raises(ConfigurationError, match=f"does not list two={digest_of(two)}"):
        configured_models(Settings(models=[str(one), str(two)]))
    for wrong in (f"one={listed['one']}", f"one={listed['one']},second={listed['one']}", listed["one"]):
        monkeypatch.setenv("SERVING_MODEL_SHA256", wrong)
        with pytest.raises(ConfigurationError, match=f"does not list second={digest_of(two)}"):
            configured_models(Settings(models=places))
    write(one, name="one", labels=["c", "d"])
    with pytest.raises(ConfigurationError, match=f"does not list one={digest_of(one)}"):
        configured_models(alone)


def test_a_model_without_a_model_json_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").touch()
    places = (tmp_path, tmp_path / "net.onnx")
    settings = [Settings(model_dir=place, model_sha256=["0" * 64]) for place in places]
    with pytest.raises(ConfigurationError, match=r"there is no model\.json"):
        configured_models(settings[0])
    digest = digest_of(write(tmp_path))  # of the folder's model.json, which the file does not use
    with pytest.raises(ConfigurationError, match=r"net\.onnx is refused: SERVING_MODEL_SHA256"):
        configured_models(Settings(model_dir=places[1], model_sha256=[digest]))


@pytest.mark.parametrize("value", ["", "short", "a=b=" + "0" * 64, f"{'0' * 64},short", "=" + "0" * 64])
def test_digests_are_hexadecimal(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVING_MODEL_SHA256", value)
    with pytest.raises(ConfigurationError, match="SERVING_MODEL_SHA256"):
        Settings.read()


def folders(parent: Path, *names: str, **changes: object) -> list[Path]:
    made = []
    for name in names:
        (parent / name).mkdir()
        made.append(write(parent / name, name=name, **changes))
    return made


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (["{0}", "first={0}", "{1}"], None),
        (["{0}", "{0}"], "two models are named one: .*one and .*one; write NAME=FOLDER"),
        (["{0}", "one={1}"], "two models are named one: .*one and one=.*two"),
        (["{0}", "a b={1}"], "'a b' cannot be a model's name"),
        (["{0}", "={1}"], "'' cannot be a model's name"),
        (["{0}", "x={0}/missing"], "no model in .*missing"),
    ],
)
def test_models_have_their_own_names_or_those_that_they_are_given(
    tmp_path: Path, places: list[str], words: str | None
) -> None:
    one, two = folders(tmp_path, "one", "two")
    settings = Settings(models=[place.format(one, two) for place in places])
    with pytest.raises(ConfigurationError, match=words) if words else nullcontext():
        named = [(name, model.description.name) for name, model in configured_models(settings).items()]
        assert named == [("one", "one"), ("first", "first"), ("two", "two")]


def test_two_models_of_one_alias_are_refused(tmp_path: Path) -> None:
    one, two = folders(tmp_path, "one", "two", aliases={"photos": "request"})
    with pytest.raises(ConfigurationError, match=f"two models are named photos: {one} and {two}"):
        configured_models(Settings(models=[str(one), str(two)]))


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        ({"a": "one", "b": "photos", "c": "stored"}, None),
        ({"a": "nobody"}, "SERVING_ALIASES: a=nobody: there is no model nobody"),
        ({"photos": "one"}, "photos is a model's name"),
        ({"a": "one", "b": "a"}, "there is no model a"),
    ],
)
def test_aliases_are_of_models_that_are_configured_or_stored(
    tmp_path: Path, aliases: dict[str, str], words: str | None
) -> None:
    (one,) = folders(tmp_path, "one", aliases={"photos": "request"})
    (tmp_path / "store" / "stored").mkdir(parents=True)
    settings = Settings(models=[str(one)], model_store=tmp_path / "store", aliases=aliases)
    with pytest.raises(ConfigurationError, match=words) if words else nullcontext():
        assert [*configured_models(settings)] == ["one"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "it is empty"),
        (["a.onnx", "b.onnx", "readme"], "it needs model.json, .* it has a.onnx, b.onnx, readme"),
        ([f"{n}.txt" for n in range(9)], "it has 0.txt, .*, 4.txt and 4 more"),
        (["food/model.json", "words/config.json"], "name one of them: food, words"),
        (["model_quantized.onnx"], "it has model_quantized.onnx"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, files: list[str], words: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ConfigurationError, match=f"no model in {tmp_path}: .*{words}"):
        Model.read(tmp_path)


def test_every_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (good,) = folders(tmp_path, "good")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.json").write_text("{")
    places = [str(tmp_path / name) for name in ("none", "good", "broken")]
    with pytest.raises(ConfigurationError, match=r"none: there is no.*; .*broken/model.json is invalid"):
        configured_models(Settings(models=places))
    assert [*configured_models(Settings(models=[str(good)]))] == ["good"]


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    for name in ("none", "net.onnx", "net.onnx/model"):
        with pytest.raises(ConfigurationError, match=r"there is no such folder or \.onnx file"):
            Model.read(tmp_path / name)


@pytest.mark.parametrize("typed", ["models/food12", "model/food11", "models/foot11/"])
def test_a_mistyped_path_is_answered_with_the_nearest(typed: str, tmp_path: Path) -> None:
    (tmp_path / "models" / "food11").mkdir(parents=True)
    (tmp_path / "models" / "sentiment.onnx").touch()
    with pytest.raises(ConfigurationError, match=f"nearest is {tmp_path}/models/food11$"):
        Model.read(tmp_path / typed)
    with pytest.raises(ConfigurationError, match=r"nearest is .*/sentiment.onnx$"):
        Model.read(tmp_path / "models" / "sentimnet.onnx")
    with pytest.raises(ConfigurationError) as refused:
        Model.read(tmp_path / "models" / "question-answering")
    assert "nearest" not in str(refused.value)


def test_a_file_of_another_kind_is_not_said_to_be_missing(tmp_path: Path) -> None:
    weights = tmp_path / "resnet18.pth"
    weights.touch()
    with pytest.raises(ConfigurationError, match=r"it is a file, .* `smallplates export torchvision`"):
        Model.read(weights)


def test_a_folder_of_models_names_those_of_every_kind(tmp_path: Path) -> None:
    for file in ("food/model.json", "food/config.json", "mood/config.json", "graph/model.onnx", "x/y"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(
        ConfigurationError, match=r"several models; name one of them: food, graph, mood$"
    ):
        Model.read(tmp_path)


def test_modules_of_sentence_transformers_without_a_network_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "0_Transformer").mkdir()
    (tmp_path / "0_Transformer" / "config.json").touch()
    (tmp_path / "modules.json").touch()
    with pytest.raises(ConfigurationError, match=r"modules\.json .* StaticEmbedding"):
        Model.read(tmp_path)


def test_a_single_onnx_file_is_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    folder.mkdir()
    (folder / "net-3.onnx").touch()
    for path, name in ((folder, "sums"), (folder / "net-3.onnx", "net-3")):
        model = Model.read(path)
        assert (model.description.name, model.description.task) == (name, "tensor")
        assert model.file("model.onnx") == folder / "net-3.onnx"
        assert model.path == path
        assert Model.read(model.path, "1").file("model.onnx") == folder / "net-3.onnx"
        with pytest.raises(ConfigurationError, match=r"no model\.safetensors"):
            model.file("model.safetensors")
    (folder / "other.onnx").touch()
    (folder / "model.json").write_text("{}")
    assert Model.read(folder / "other.onnx").file("model.onnx") == folder / "other.onnx"
    (folder / "net 3.onnx").touch()
    with pytest.raises(ConfigurationError, match=r"'net 3' cannot be a model's name.*NAME=FOLDER"):
        Model.read(folder / "net 3.onnx")


def test_a_link_to_a_folder_gives_the_model_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "snapshots" / "5e3c7df7"
    target.mkdir(parents=True)
    (target / "model.onnx").touch()
    link = tmp_path / "prices"
    link.symlink_to(target)
    for place in (link, link / "model.onnx"):
        assert Model.read(place).description.name == "prices"
    (target / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    (target / "tokenizer.json").write_text("{}")
    assert Model.read(link).description.name == "prices"
    monkeypatch.chdir(target)
    assert Model.read(Path()).description.name == "5e3c7df7"


def test_a_given_name_replaces_one_that_cannot_be_a_models(tmp_path: Path) -> None:
    for folder, file in (("caf\xe9 v2", "net.onnx"), ("a=b", "1/model.onnx"), ("sums", "my net.onnx")):
        graph = tmp_path / folder / file
        graph.parent.mkdir(parents=True)
        graph.touch()
        place = graph if folder == "sums" else tmp_path / folder
        (model,) = configured_models(Settings(models=[f"mood={place}"])).values()
        assert (model.description.name, model.file("model.onnx")) == ("mood", graph)
        with pytest.raises(ConfigurationError, match=r"cannot be a model's name.*NAME=FOLDER"):
            Model.read(place)


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": []},
        {"version": "../1"},
        {"name": "../x"},
        {"image": {"resize": 64, **STATISTICS}},
        {"image": {"resize": 0, "center_crop": 1, **STATISTICS}},
        {"image": {"resize": [1, 1], "mean": [0, 0, 0], "std": [1, 1, 0]}},
        {"image": {"resize": [5000, 5000], **STATISTICS}},
        {"image": {"resize": 64, "center_crop": 10**30, **STATISTICS}},
        {"image": {"resize": [1, 1], "mean": [0, 0, math.nan], "std": [1, 1, 1]}},
        {"image": {"resize": [1, 1], "mean": [0, 0, 0], "std": [1, 1, math.inf]}},
        {"files": {"1/model.onnx": "short"}},
        {"surprise": 1},
    ],
)
def test_a_wrong_description(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"model\.json is invalid"):
        Model.read(write(tmp_path, **changes))


def test_weights_are_compared_with_their_digest(tmp_path: Path) -> None:
    model = Model.read(write(tmp_path))
    with pytest.raises(ConfigurationError, match=r"has no 1/model\.onnx"):
        model.file("model.onnx")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(b"something else")
    with pytest.raises(ConfigurationError, match="does not match its SHA-256"):
        model.file("model.onnx")
    with pytest.raises(ConfigurationError, match=r"has no 1/model\.safetensors for this backend"):
        model.file("model.safetensors")


def test_what_the_system_refuses_to_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"/9{300}/model\.json cannot be read: File name too long"
    ):
        Model.read(tmp_path, "9" * 300)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").touch()
    refused = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr("smallplates.models.folder.file_sha256", refused)
    with pytest.raises(ConfigurationError, match=r"1/model\.onnx cannot be read: Permission denied"):
        Model.read(tmp_path).file("model.onnx")


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    write(folder)
    with pytest.raises(ConfigurationError, match=r"caf\\udce9' cannot be read: its name is not UTF-8"):
        Model.read(folder)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, float("inf")),
        ({"cpu.max": "max 100000"}, float("inf")),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ({"a.slice/b.service/cpu.max": "150000 100000"}, 1.5),
        ({"a.slice/cpu.max": "50000 100000", "a.slice/b.service/cpu.max": "max 100000"}, 0.5),
        ({"c.slice/cpu.max": "50000 100000"}, float("inf")),
        ({"cpu/old/cpu.cfs_quota_us": "50000", "cpu/old/cpu.cfs_period_us": "100000"}, 0.5),
        ({"cpu/other/cpu.cfs_quota_us": "50000", "cpu/other/cpu.cfs_period_us": "100000"}, float("inf")),
    ],
)
def test_the_quota_of_a_container_or_of_systemd(
    tmp_path: Path, files: dict[str, str], expected: float
) -> None:
    membership = tmp_path / "membership"
    membership.write_text("5:memory:/other\n4:cpu,cpuacct:/old\n0::/a.slice/b.service\n")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert cpus.quota(tmp_path, membership) == expected
    assert 1 <= cpus.usable(tmp_path, membership) <= max(1, round(min(expected, 10_000)))


def test_a_grant_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "_granted", math.inf)
    here = cpus.usable()
    assert cpus.grant(0.5) == cpus.usable() == 1
    assert cpus.grant(here + 1) == here


def test_a_version_has_changed_if_one_of_its_files_has(tmp_path: Path) -> None:
    for name in ("1/model.onnx", "2/model.onnx", "onnx/model.onnx", "model.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    known = files_of(tmp_path, "1")
    assert files_of(tmp_path, "1") == known
    (tmp_path / "2/model.onnx").write_bytes(b"another version")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    assert files_of(tmp_path, "1") == known
    for name in ("1/model.onnx", "onnx/model.onnx", "model.json"):
        (tmp_path / name).write_bytes(b"12")
        now = files_of(tmp_path, "1")
        assert now != known
        known = now


def test_other_peoples_files_are_not_a_model_s(tmp_path: Path) -> None:
    for name in (
        "own.onnx",
        "own.data",
        "photos/1.jpg",
        "model/1/task.py",
        "model/1/__pycache__/task.pyc",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "model/.git").mkdir()
    (tmp_path / "model/.git/index").write_bytes(b"1")
    found = files_of(tmp_path / "own.onnx", "1")
    assert {path for path, *_ in found} == {str(tmp_path / name) for name in ("own.onnx", "own.data")}
    found = files_of(tmp_path / "model", "1")
    assert {path for path, *_ in found} == {str(tmp_path / "model/1/task.py")}
