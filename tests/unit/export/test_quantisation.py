"""`smallplates export ... --int8`, `smallplates quantize`: int8 files, their verdicts, and what goes
wrong.
"""

import copy
import json
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.ao.quantization.quantize_fx import convert_fx
from torch.fx import GraphModule
from torchvision.models import VisionTransformer, get_model

from fastapi_onnx.backend import OnnxBackend
from fastapi_onnx.gpu_graph import normalise
from fastapi_onnx.shared_weights import products_saturate
from fastapi_pt.backend import TorchBackend
from fastapi_pt.network import Network
from smallplates.cli import export
from smallplates.errors import ConfigurationError
from smallplates.export import int8, int8_onnx, int8_pt, photos
from smallplates.export.int8 import Options
from smallplates.export.int8_verdict import Verdict, objection_to
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits
from tests import command_line, graphs
from tests.graphs import digest, node, tensors, value
from tests.unit.models.test_huggingface import images

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    # of processors without VNNI, where PyTorch's int8 products saturate
    pytest.mark.filterwarnings("ignore:Default qconfig of oneDNN backend:UserWarning"),
]

COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
SIDE = 16
POOLED = [
    node("Conv", "x weights", "convolved", name="convolution"),
    node("GlobalAveragePool", "convolved", "pooled", name="pooling"),
]


def run(*arguments: object, code: int = 0) -> str:
    """Returns what it says; it ends with this code."""
    app = export.app if arguments[0] in ("torchvision", "onnx") else export.quantise_app
    return command_line.run(app, *arguments, code=code)


def describe(exported: Path, **fields: Any) -> Model:
    """The exported model with other fields of model.json."""
    path = exported / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return Model.read(exported)


@pytest.fixture(scope="module")
def folder_of_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve noisy pictures of each colour, in a folder of its name, and a file that is none."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(1)
    for label, colour in COLOURS.items():
        (folder / label).mkdir()
        for number in range(12):
            pixels = random.normal(colour, 30, (SIDE, SIDE, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    (folder / "red" / "broken.jpg").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an ONNX file that names the channel with the highest mean, and with its export."""
    folder = tmp_path_factory.mktemp("made")
    nodes = [*POOLED, node("Flatten", "pooled", "y", name="flattening")]
    inputs, outputs = [value("x", axes=["N", 3, SIDE, SIDE])], [value("y", axes=["N", 3])]
    weights = tensors(weights=np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1))
    graph, labels = folder / "colours.onnx", folder / "labels.txt"
    onnx.save(graphs.model(nodes, inputs, outputs, weights, opset=17, ir_version=9), graph)
    labels.write_text("\n".join(COLOURS))
    run(
        *("onnx", "--file", graph, "--labels", labels, "--out", folder / "colours"),
        *("--name", "colours", "--resize", f"{SIDE}x{SIDE}"),
    )
    return folder


@pytest.fixture
def colour_graph(tmp_path: Path, made: Path) -> Path:
    return Path(shutil.copy(made / "colours.onnx", tmp_path))


@pytest.fixture
def exported(tmp_path: Path, made: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "colours"


def test_an_existing_folder_gets_an_int8_file_with_its_verdict(
    exported: Path, folder_of_photos: Path
) -> None:
    assert "model_quantized.onnx: fit" in run(exported, "--calibrate", folder_of_photos)
    model = Model.read(exported)
    verdict = Verdict.of(model.description.int8["1/model_quantized.onnx"])
    assert verdict.fit
    assert verdict.photos == 18  # calibration has the other half
    assert verdict.agreement == 1
    assert verdict.accuracy == {"fp32": 1, "int8": 1}
    assert verdict.worst_difference >= verdict.mean_difference > 0
    assert verdict.batch_ms["fp32"].keys() == verdict.batch_ms["int8"].keys() == {1, 4}
    assert verdict.megabytes.keys() == {"fp32", "int8"}
    assert verdict.method in int8_onnx.METHODS
    graph = onnx.load(model.file("model_quantized.onnx"))
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in graph.graph.node}
    assert sorted(path.name for path in (exported / "1").iterdir()) == [
        "model.onnx",
        "model_quantized.onnx",
    ]
    assert OnnxBackend().load(model, Settings(device="cpu", precision="int8")).precision == "int8"


@pytest.mark.parametrize("place", ["model.onnx", "onnx/model.onnx"])
def test_an_export_from_hugging_face_gets_it_beside_the_graph(
    tmp_path: Path, colour_graph: Path, folder_of_photos: Path, place: str
) -> None:
    graph = tmp_path / "exported" / place
    graph.parent.mkdir(parents=True)
    colour_graph.rename(graph)
    preprocessor = {"size": {"height": SIDE, "width": SIDE}, "image_processor_type": "ViTImageProcessor"}
    save_file({}, tmp_path / "exported/model.safetensors")
    images(tmp_path / "exported", {"id2label": dict(enumerate(COLOURS))}, **preprocessor)
    run(tmp_path / "exported", "--calibrate", folder_of_photos)
    model = Model.read(tmp_path / "exported")
    assert model.file("model_quantized.onnx") == graph.with_name("model_quantized.onnx")
    kept = model.verdict("model_quantized.onnx")
    assert kept is not None
    verdict = Verdict.of(kept)
    assert verdict.fit
    assert verdict.accuracy == {"fp32": 1, "int8": 1}
    assert OnnxBackend().load(model, Settings(device="cpu", precision="int8")).precision == "int8"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_state_dict_gets_int8_files_for_both_backends(tmp_path: Path, folder_of_photos: Path) -> None:
    torch.manual_seed(3)
    save_file(get_model("squeezenet1_1", num_classes=3).state_dict(), tmp_path / "w.safetensors")
    (tmp_path / "labels.txt").write_text("\n".join(COLOURS))
    run(
        *("torchvision", "--weights", tmp_path / "w.safetensors", "--labels", tmp_path / "labels.txt"),
        *("--out", tmp_path / "mine", "--name", "mine", "--architecture", "squeezenet1_1"),
        *("--resize", "64x64", "--int8", "--calibrate", folder_of_photos),
    )
    model = Model.read(tmp_path / "mine")
    images = photos.read(folder_of_photos, model, most=3).pixels
    for kind, make in (("model_quantized.onnx", OnnxBackend), ("model_quantized.pt", TorchBackend)):
        verdict = Verdict.of(model.description.int8[f"1/{kind}"])
        assert verdict.fit == (verdict.agreement >= 0.98 and verdict.reason.startswith("it names"))
        answers = {}
        for precision in ("fp32", "int8"):
            backend = make()
            settings = Settings.model_validate({"device": "cpu", "precision": precision})
            assert backend.load(model, settings).precision == precision
            answers[precision] = compute_logits(backend, images)
        assert not np.array_equal(answers["fp32"], answers["int8"])
        assert np.abs(answers["fp32"] - answers["int8"]).max() < np.abs(answers["fp32"]).max() / 4


def test_a_graph_that_was_quantised_elsewhere_is_judged_alike(
    exported: Path, colour_graph: Path, folder_of_photos: Path, tmp_path: Path
) -> None:
    file = exported / "model.json"
    other = {"fit": True, "reason": "made before", "sample_difference": 0}
    described = {**json.loads(file.read_bytes()), "int8": {"1/model_quantized.pt": other}}
    file.write_text(json.dumps(described))
    run(exported, "--calibrate", folder_of_photos, "--file", colour_graph)
    verdicts = Model.read(exported).description.int8
    assert sorted(verdicts) == ["1/model_quantized.onnx", "1/model_quantized.pt"]
    verdict = Verdict.of(verdicts["1/model_quantized.onnx"])
    assert (verdict.fit, verdict.method, verdict.worst_difference) == (True, "", 0)
    graph = onnx.load(colour_graph)
    wrong = -np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)
    graph.graph.initializer[0].CopyFrom(*tensors(weights=wrong))
    onnx.save(graph, tmp_path / "wrong.onnx")
    said = run(exported, "--calibrate", folder_of_photos, "--file", tmp_path / "wrong.onnx")
    assert "model_quantized.onnx: NOT FIT; it names fp32's class for 0.0% of the photos" in said
    info = OnnxBackend().load(Model.read(exported), Settings(device="cpu"))
    assert info.precision == "fp32"
    assert "is not fit for use: it names fp32's class for 0.0%" in info.precision_reason


def test_new_weights_take_old_int8_files_away(
    exported: Path, colour_graph: Path, folder_of_photos: Path, tmp_path: Path
) -> None:
    run(exported, "--calibrate", folder_of_photos)
    run(
        *("onnx", "--file", colour_graph, "--labels", tmp_path / "labels.txt", "--out", exported),
        *("--name", "colours", "--resize", f"{SIDE}x{SIDE}"),
    )
    assert not Model.read(exported).has("model_quantized.onnx")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("source", ["empty", "no zip", "missing", "no photos"])
def test_photos_that_cannot_be_read_change_nothing(exported: Path, tmp_path: Path, source: str) -> None:
    path = tmp_path / "source"
    if source in ("empty", "no photos"):
        path.mkdir()
    if source == "no photos":
        (path / "a.jpg").write_bytes(b"no picture")
        (path / "b.txt").write_bytes(b"no picture")
    elif source == "no zip":
        path.write_bytes(b"PK but no zip")
    before = contents(exported)
    said = run(exported, "--calibrate", path, code=1)
    assert said.startswith("no int8 file was made: ")
    assert str(path) in said
    assert said.count("\n") == 1
    assert contents(exported) == before


def test_a_graph_that_the_quantiser_cannot_take_changes_nothing(
    exported: Path, folder_of_photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NotImplementedError("no such\nnode")

    monkeypatch.setattr(int8_onnx, "quantize_static", fail)
    before = contents(exported)
    said = run(exported, "--calibrate", folder_of_photos, code=1)
    reason = "no int8 file was made: ONNX Runtime cannot quantise the graph: no such node"
    assert said.splitlines()[-1] == reason
    assert contents(exported) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--int8",), "--int8 needs --calibrate"), (("--calibrate", "."), "need --int8")],
)
def test_half_of_the_options_are_refused(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    options = ("--file", "f", "--labels", "l", "--out", tmp_path, "--name", "n", *arguments)
    assert words in " ".join(run("onnx", *options, code=2).split())


def test_photos_of_a_zip_have_the_classes_of_their_folders(exported: Path, tmp_path: Path) -> None:
    model = Model.read(exported)
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, colour in (("02/a.png", "blue"), ("all/red/b.png", "red"), ("1/c.PNG", "green")):
            with archive.open(name, "w") as file:
                Image.new("RGB", (SIDE, SIDE), COLOURS[colour]).save(file, "PNG")
        archive.writestr("1/notes.txt", "no photo")
        archive.writestr("1/damaged.png", b"to be damaged", zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"to be damaged", b"was damaged!!"))
    read = photos.read(path, model, most=10)
    assert read.labels is not None
    assert read.labels.tolist() == read.pixels[:, 0, 0].argmax(axis=1).tolist()
    assert len(photos.read(path, model, most=2)) == 2
    with zipfile.ZipFile(path, "a") as archive, archive.open("unknown/d.png", "w") as file:
        Image.new("RGB", (SIDE, SIDE)).save(file, "PNG")
    assert photos.read(path, model, most=10).labels is None


@pytest.mark.parametrize(("number", "calibration", "compared"), [(1, 1, 1), (7, 4, 3), (300, 150, 150)])
def test_photos_are_divided_where_none_are_given_to_compare(
    exported: Path, number: int, calibration: int, compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = photos.Photos(np.zeros((number, 2, 2, 3), np.uint8), None)
    monkeypatch.setattr(photos, "read", lambda *_: several)
    parts = int8.read_photos(Model.read(exported), Options(Path("unread")))
    assert [len(part) for part in parts] == [calibration, compared]


@pytest.mark.parametrize(
    ("agreement", "accuracy", "words"),
    [
        (0.98, {}, None),
        (0.979, {}, "it names fp32's class for 97.9% of the photos; 98% are needed"),
        (0.99, {"fp32": 0.7, "int8": 0.6951}, None),
        (0.99, {"fp32": 0.7, "int8": 0.68}, "it costs 2.0 points of accuracy; 0.5 are allowed"),
        (0.99, {"fp32": 0.7, "int8": 0.9}, None),
    ],
)
def test_what_is_fit(agreement: float, accuracy: dict[str, float], words: str | None) -> None:
    assert objection_to(agreement, accuracy) == words


class Quantiser:
    """Stands in for `int8_onnx.Quantiser`: four layers, of which `c` and `a` hurt."""

    heavy_nodes = ["a", "b", "c", "d"]  # noqa: RUF012 read only
    harm = {"a": 0.2, "b": 0.01, "c": 0.3, "d": 0.02}  # noqa: RUF012 read only

    def __init__(self) -> None:
        self.written: tuple[str, tuple[str, ...]] = ("", ())
        self.only: tuple[str, ...] = ()

    def write(self, method: str, exclude: tuple[str, ...] = (), only: tuple[str, ...] = ()) -> None:
        self.written, self.only = (method, tuple(exclude)), tuple(only)

    def judge(self, method: str, fp32_nodes: list[str]) -> Verdict:
        left = sum(harm for name, harm in self.harm.items() if name not in fp32_nodes)
        left += 0.001 * list(int8_onnx.METHODS).index(method)
        known = Verdict.of(Model.read(Settings().model_dir).description.int8["1/model_quantized.onnx"])
        judgement = {"fit": left < 0.1, "mean_difference": left, "reason": "judged"}
        return known.model_copy(update={**judgement, "method": method, "fp32_nodes": fp32_nodes})

    def difference(self, _: int) -> float:
        return self.harm[self.only[0]]


@pytest.mark.parametrize(("seconds", "fp32_nodes"), [(60, ["a", "b", "c"]), (-1, ["a", "b"])])
def test_layers_that_hurt_stay_in_fp32_if_there_is_time(seconds: int, fp32_nodes: list[str]) -> None:
    quantiser: Any = Quantiser()
    end = time.monotonic() + seconds
    verdict = int8_onnx.search(quantiser, quantiser.judge, quantiser.difference, end)
    assert (verdict.fit, verdict.method) == (seconds > 0, "min-max")
    assert verdict.fp32_nodes == fp32_nodes
    assert quantiser.written == ("min-max", tuple(fp32_nodes))


def test_missing_weights_for_pytorch_leave_onnx_runtimes(exported: Path, folder_of_photos: Path) -> None:
    files = {"1/model.onnx": digest(exported / "1/model.onnx"), "1/model.safetensors": "0" * 64}
    model = describe(exported, architecture="squeezenet1_1", files=files)
    verdicts = int8.add(model, Options(folder_of_photos))
    assert list(verdicts) == ["model_quantized.onnx"]
    assert (exported / "1/model_quantized.onnx").is_file()


def test_a_graph_with_its_weights_in_another_file(exported: Path, folder_of_photos: Path) -> None:
    graph = exported / "1/model.onnx"
    onnx.save(
        onnx.load(graph), graph, save_as_external_data=True, location="model.onnx.data", size_threshold=0
    )
    model = describe(exported, files={"1/model.onnx": digest(graph)})
    verdict = int8.add(model, Options(folder_of_photos))["model_quantized.onnx"]
    size = graph.stat().st_size + graph.with_name("model.onnx.data").stat().st_size
    assert verdict.megabytes["fp32"] == round(size / 1e6, 1)
    assert (exported / "1/model_quantized.onnx").is_file()


def test_photos_of_several_classes_cannot_be_judged(
    colour_graph: Path, folder_of_photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(COLOURS))
    run(
        *("onnx", "--file", colour_graph, "--labels", tmp_path / "labels.txt", "--name", "tags"),
        *("--out", tmp_path / "tags", "--resize", f"{SIDE}x{SIDE}", "--activation", "sigmoid"),
    )
    model = Model.read(tmp_path / "tags")
    assert model.description.activation == "sigmoid"
    with pytest.raises(ConfigurationError, match="several classes may apply to a photo"):
        int8.add(model, Options(folder_of_photos))


def test_a_folder_without_weights_cannot_be_quantised(exported: Path, folder_of_photos: Path) -> None:
    model = describe(exported, files={})
    with pytest.raises(ConfigurationError, match="the model colours has no file to quantise"):
        int8.add(model, Options(folder_of_photos))


def clipped(kept: list[str] | None) -> tuple[GraphModule, torch.Tensor, torch.Tensor]:
    """A network with ReLU6 in int8, photos, and its outputs for them in fp32; None: behind a pool."""
    torch.manual_seed(0)
    first, second, third = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 4, 3)
    network = nn.Sequential(first, nn.ReLU6(), second, nn.ReLU6(), third, nn.Flatten()).eval()
    if kept is None:
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU6(), nn.Flatten()).eval()
    nn.init.constant_(network.get_parameter("0.bias"), 4)
    photos = torch.randn(8, 3, 6, 6) * 4
    with torch.inference_mode():
        expected = network(photos)
        prepared = int8_pt.with_observers(copy.deepcopy(network), photos, kept or [])
        prepared(photos)
        return convert_fx(prepared), photos, expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kept", [[], ["0", "2"]], ids=["int8", "some in fp32"])
def test_a_clipped_activation_is_a_part_of_the_convolution_right_before_it(kept: list[str]) -> None:
    quantised, _, _ = clipped(kept)
    assert "relu" not in quantised.code
    in_fp32 = [n for n in "024" if "quantized" not in type(quantised.get_submodule(n)).__module__]
    assert in_fp32 == kept


@pytest.mark.skipif(products_saturate(), reason="int8 products saturate on this processor")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kept", [[], ["0", "2"], None], ids=["int8", "some in fp32", "behind a pool"])
def test_clipped_activations_are_nearly_those_of_fp32(kept: list[str] | None) -> None:
    quantised, photos, expected = clipped(kept)
    with torch.inference_mode():
        torch.testing.assert_close(quantised(photos), expected, atol=0.1, rtol=0)


def rounded_down(outputs: int, inputs: int) -> np.ndarray:
    """Weights of which int8 keeps the largest of each output; the others, 0.4 steps, become 0."""
    weights = np.full((outputs, inputs), 0.4 / 127, np.float32)
    weights[:, 0] = 1
    return weights


@pytest.mark.parametrize("flipped", [False, True])
def test_onnx_biases_make_up_for_rounded_weights(exported: Path, tmp_path: Path, flipped: bool) -> None:
    head = rounded_down(3, 16)
    constants = {
        "weights": rounded_down(16, 3).reshape(16, 3, 1, 1),
        "head": head if flipped else head.T,
        "convolution_bias": np.ones(3, np.float32),  # the last layer's, whatever its name says
    }
    nodes = [
        *POOLED,
        node("Flatten", "pooled", "flat", name="flattening"),
        node("Gemm", "flat head convolution_bias", "y", name="last", transB=int(flipped)),
    ]
    path = exported / "1/model.onnx"
    graph = onnx.load(path)
    del graph.graph.node[:], graph.graph.initializer[:]
    graph.graph.node.extend(nodes)
    graph.graph.initializer.extend(tensors(**constants))
    onnx.save(graph, path)
    model = describe(exported, files={"1/model.onnx": digest(path)})
    out = tmp_path / "int8.onnx"
    pixels = np.random.default_rng(0).integers(200, 256, (16, SIDE, SIDE, 3), np.uint8)
    quantiser = int8_onnx.Quantiser(model, pixels, out, tmp_path)
    photos = normalise(pixels, model.description.pipeline)

    def logits(file: Path) -> np.ndarray:
        session = ort.InferenceSession(file)
        return np.concatenate([session.run(None, {"x": photo[np.newaxis]})[0] for photo in photos])

    expected = logits(path)
    for exclude in ([], ["last"], ["convolution"], ["convolution", "last"]):
        quantiser.write("min-max", exclude=exclude)
        np.testing.assert_allclose(logits(out).mean(0), expected.mean(0), atol=0.01)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_pytorchs_biases_make_up_for_rounded_weights(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convolution, last = nn.Conv2d(3, 16, 1, bias=False), nn.Linear(16, 3)
    body = nn.Sequential(convolution, nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).eval()
    for layer in (convolution, last):
        weights = torch.from_numpy(rounded_down(*layer.weight.shape[:2]))
        layer.weight = nn.Parameter(weights.reshape(layer.weight.shape))
    network, out = Network(body, None).eval(), tmp_path / "int8.pt"
    monkeypatch.setattr(int8_pt, "read_network", lambda _model: copy.deepcopy(network))
    model = Model.read(exported)
    pixels = np.random.default_rng(0).integers(200, 256, (16, SIDE, SIDE, 3), np.uint8)
    tensors = torch.from_numpy(normalise(pixels, model.description.pipeline))
    with torch.inference_mode():
        for first in (0, 1):
            int8_pt.write(model, pixels, out, first)
            actual = torch.jit.load(out)(tensors).mean(0)
            torch.testing.assert_close(actual, network(tensors).mean(0), atol=0.01, rtol=0)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_pytorch_takes_attention_whose_last_layer_is_not_called(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = VisionTransformer(
        **{"image_size": SIDE, "patch_size": 8, "num_layers": 2, "num_heads": 2},
        **{"hidden_dim": 8, "mlp_dim": 8, "num_classes": 3},
    )
    monkeypatch.setattr(int8_pt, "read_network", lambda _model: Network(body, None).eval())
    pixels = np.random.default_rng(0).integers(0, 256, (4, SIDE, SIDE, 3), np.uint8)
    int8_pt.write(Model.read(exported), pixels, tmp_path / "int8.pt", 2)
    assert (tmp_path / "int8.pt").is_file()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pytorch_clips_no_weight() -> None:
    network = nn.Sequential(nn.Conv2d(2, 1, 1)).eval()
    network.get_parameter("0.weight").data[:] = torch.tensor([1.0, -1.0])[None, :, None, None]
    photos = torch.randn(1, 2, 4, 4)
    with torch.inference_mode():
        prepared = int8_pt.with_observers(network, photos, [])
        prepared(photos)
        weights: Any = convert_fx(prepared).get_submodule("0").weight  # a method of the library's
        torch.testing.assert_close(weights().dequantize().flatten(), torch.tensor([1.0, -1.0]))
