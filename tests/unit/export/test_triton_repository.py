"""The model repository for Triton: its configurations, its graphs, and that it needs nothing else."""

import json
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf import text_format
from onnx import TensorProto
from tritonclient.grpc import model_config_pb2

from smallplates.errors import ConfigurationError
from smallplates.export.triton import __main__ as command
from smallplates.export.triton.build import CARRIED, build
from smallplates.export.triton.config import Configs
from smallplates.export.triton.graph import with_known_names
from smallplates.models.folder import Model
from smallplates.settings import ROOT, Settings
from tests import graphs, servers
from tests.graphs import node, value

PHOTOS, TENSORS = "food_classifier", "food_classifier_onnx"
TYPES = {"tensor(float)": model_config_pb2.TYPE_FP32}
Config = Any  # protobuf's classes are made at run time


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("triton")
    build(out, Settings())
    return out


def parsed(text: str) -> Config:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def config(repository: Path, name: str) -> Config:
    return parsed((repository / name / "config.pbtxt").read_text())


@pytest.mark.parametrize(
    ("backend", "device", "devices", "kind"),
    [
        ("onnx", "cuda", [], "KIND_CPU"),
        ("pt", "cpu", [], "KIND_CPU"),
        ("pt", "cuda", [], "KIND_GPU"),
        ("pt", "cuda", [0, 2], "KIND_GPU"),
    ],
)
def test_photos_are_computed_on_a_gpu_by_pytorch_only(
    backend: str, device: str, devices: list[int], kind: str
) -> None:
    settings = Settings(device=device, devices=devices)
    configs = Configs(Model.read(settings.model_dir).description, settings, backend)
    (group,) = parsed(configs.photo()).instance_group
    assert model_config_pb2.ModelInstanceGroup.Kind.Name(group.kind) == kind
    assert list(group.gpus) == devices
    (group,) = parsed(configs.tensor()).instance_group
    assert list(group.gpus) == devices


def test_the_tensor_model_is_the_graph_s(repository: Path) -> None:
    tensors = config(repository, TENSORS)
    folder = repository / TENSORS
    session = ort.InferenceSession(folder / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    for told, has in zip(
        (*tensors.input, *tensors.output), (*session.get_inputs(), *session.get_outputs()), strict=True
    ):
        assert (told.name, told.data_type) == (has.name, TYPES[has.type])
        assert isinstance(has.shape[0], str), "the batch is open"
        assert list(told.dims) == has.shape[1:]
    assert [tensor.name for tensor in (*tensors.input, *tensors.output)] == ["input", "output"]
    labels = (folder / tensors.output[0].label_filename).read_text().splitlines()
    assert labels == Model.read(Settings().model_dir).labels


@pytest.mark.parametrize("name", ["photo", "tensor"])
def test_a_configuration_is_that_of_the_model_and_of_the_settings(name: str) -> None:
    settings = Settings(
        device="cuda",
        instances=3,
        intra_op_threads=2,
        max_batch_size=8,
        max_queue_delay_us=500,
        preferred_batch_sizes=[4, 8],
        queue_size=64,
        request_timeout_ms=2000,
        max_image_pixels=1000,
    )
    configs = Configs(Model.read(settings.model_dir).description, settings)
    found = parsed(getattr(configs, name)())
    del found.parameters["model.json"]
    assert found == parsed((ROOT / "tests" / "golden" / "triton" / f"{name}.pbtxt").read_text())


def test_any_label_survives_the_text_format() -> None:
    description = Model.read(Settings().model_dir).description
    labels = ['"quoted"', "back\\slash", "Grünkohl 🥬", "{brace}", "new\nline", "\x01"]
    description = description.model_copy(update={"labels": labels})
    photo = parsed(Configs(description, Settings()).photo())
    assert json.loads(photo.parameters["model.json"].string_value)["labels"] == labels


def test_the_photo_model_needs_nothing_of_this_project(repository: Path) -> None:
    version = repository / PHOTOS / "1"
    carried = {version / "smallplates" / f"{name}.py" for name in CARRIED}
    assert set((version / "smallplates").rglob("*.py")) == carried
    program = (
        "import sys\n"
        "sys.path.extend(sys.argv[1:])\n"
        "import model\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'smallplates'))\n"
    )
    backend = repository / "backend"
    backend.mkdir()
    stand_in = ROOT / "tests" / "fake" / "triton_backend.py"
    (backend / "triton_python_backend_utils.py").write_bytes(stand_in.read_bytes())
    paths = [str(version), sysconfig.get_path("purelib"), str(backend)]
    done = servers.run(sys.executable, "-I", "-B", "-c", program, *paths, cwd=repository)
    used = {Path(path) for path in done.stdout.split()}
    assert used == carried


def test_it_can_be_written_again(repository: Path) -> None:
    other = repository / "other" / "config.pbtxt"
    other.parent.mkdir()
    other.touch()
    stale = repository / PHOTOS / "1" / "smallplates" / "stale.py"
    stale.touch()
    build(repository, Settings())
    assert other.exists()
    assert not stale.exists()


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """The default model's network in a folder of another name, without aliases."""
    folder = tmp_path / "birds"
    folder.mkdir()
    default = Settings().model_dir
    (folder / "1").symlink_to(default / "1")
    described = json.loads((default / "model.json").read_text())
    described |= {"name": "birds", "aliases": {}, "names": {}, "instances": 3}
    (folder / "model.json").write_text(json.dumps(described))
    return folder


def test_several_folders_at_once(birds: Path, tmp_path: Path) -> None:
    build(out := tmp_path / "out", Settings(models=[str(Settings().model_dir), str(birds)], instances=1))
    assert {path.name for path in out.iterdir()} == {PHOTOS, TENSORS, "birds", "birds_tensor"}
    photo, tensors = config(out, "birds"), config(out, "birds_tensor")
    assert [tensor.name for tensor in (*photo.input, *photo.output)] == ["IMAGE", "LABEL", "PROBABILITY"]
    assert (photo.name, tensors.name) == ("birds", "birds_tensor")
    counts = [config(out, name).instance_group[0].count for name in (PHOTOS, "birds")]
    assert counts == [1, 3]  # its model.json says so


def test_names_that_meet_in_triton(birds: Path, tmp_path: Path) -> None:
    both = Settings(models=[str(birds), f"birds_tensor={birds}"])
    with pytest.raises(ConfigurationError, match="same name in Triton: birds, birds_tensor"):
        build(tmp_path / "out", both)
    assert not (tmp_path / "out").exists()


def graph(
    names: tuple[str, str] = ("data", "scores"),
    shape: tuple[Any, ...] = ("N", 3, 4, 4),
    classes: Any = 48,
    kind: int = TensorProto.FLOAT,
    inner: str = "flat",
) -> onnx.ModelProto:
    """Flattens a picture and negates it: 48 classes of 4x4 pixels."""
    source, result = names
    nodes = [node("Flatten", source, inner), node("Neg", inner, result)]
    return graphs.model(nodes, [value(source, kind, shape)], [value(result, kind, ["N", classes])])


@pytest.mark.parametrize("names", [("data", "scores"), ("input", "scores"), ("data", "output")])
def test_other_names_become_the_known_ones(names: tuple[str, str]) -> None:
    original = graph(names)
    renamed = with_known_names(original, (4, 4), 48)
    onnx.checker.check_model(renamed, full_check=True)
    assert original.graph.input[0].name == names[0]
    batch = np.random.default_rng(7).normal(size=(2, 3, 4, 4)).astype(np.float32)
    session = ort.InferenceSession(renamed.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(["output"], {"input": batch})[0], -batch.reshape(2, 48))


def test_the_known_names_stay() -> None:
    original = graph(("input", "output"))
    assert with_known_names(original, (4, 4), 48) is original


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: graph(shape=(1, 3, 4, 4)), "batch's size is fixed"),
        (lambda: graph(shape=("N", 4, 4, 3)), "'data' in model.onnx is not float"),
        (lambda: graph(shape=("N", 3, 4)), "'data' in model.onnx is not float"),
        (lambda: graph(kind=TensorProto.FLOAT16), "exactly one input, float"),
        (lambda: graph(classes=7), "'scores' in model.onnx is not float"),
        (lambda: graph(inner="output"), "named 'output' already"),
        (onnx.ModelProto, "exactly one input"),
    ],
)
def test_graphs_that_cannot_be_served(make: Callable[[], onnx.ModelProto], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        with_known_names(make(), (4, 4), 48)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, default = tmp_path / "out", Settings().model_dir
    monkeypatch.setattr(sys, "argv", ["triton", "--out", str(out)])
    assert command.main() == 0
    others = ["--model", str(default), f"copy={default}", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["triton", *others])
    assert command.main() == 1
    assert f"two models are named {PHOTOS}" in capsys.readouterr().err
    graphs.saved(graphs.two_by_two(), tmp_path / "numbers", "1")
    others = ["--model", str(default), "--model", str(tmp_path / "numbers"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["triton", *others])
    assert command.main() == 1
    assert "only image-classification can be written for Triton" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["triton", "--out", str(out)])
    assert command.main() == 0
    assert str(tmp_path / "out") in capsys.readouterr().out
    missing = ["triton", "--model", str(tmp_path / "none"), "--out", str(tmp_path / "none")]
    monkeypatch.setattr(sys, "argv", missing)
    assert command.main() == 1
    assert "no model in" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
