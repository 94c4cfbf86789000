"""`smallplates.models.huggingface`: folders that transformers writes, as descriptions, or refused in
a sentence.
"""

import json
import shutil
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import Resampling

from fastapi_onnx.backend import OnnxBackend
from smallplates.cli.export import from_transformers
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.base import Prepared
from smallplates.tasks.image.decode import ImageDecoder
from smallplates.tasks.image_classification import compute_logits
from tests import graphs, pictures
from tests.served_task import ServedTask

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.25]
CONFIG: dict[str, Any] = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "id2label": {"0": "red", "2": "blue", "1": "green"},
    "image_size": 224,
}
PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 40, "width": 56},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": MEAN,
    "image_std": STD,
}

NULL = ...


def export(folder: Path, config: dict[str, Any] = CONFIG, **files: Any) -> Path:
    """The folder with these files; None leaves a field out, NULL writes null."""
    folder.mkdir(exist_ok=True)
    for name, content in {"config": config, **files}.items():
        fields = {key: value for key, value in content.items() if value is not None}
        text = json.dumps(fields, default={NULL: None}.__getitem__)
        (folder / f"{name}.json").write_text(text)
    return folder


def images(folder: Path, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    return export(folder, CONFIG | (config or {}), preprocessor_config={**PREPROCESSOR, **changes})


def reference(
    image: Image.Image,
    size: tuple[int, int] | int,
    resample: Resampling,
    crop: int | tuple[int, int] | None,
) -> NDArray[np.uint8]:
    """What the image processors do, with Pillow; `size` is the short side or (height, width)."""
    if isinstance(size, int):
        longer = int(size * max(image.size) / min(image.size))
        size = (longer, size) if image.height > image.width else (size, longer)
    pixels = np.asarray(image.resize(size[::-1], resample))
    if crop:
        down, across = (crop, crop) if isinstance(crop, int) else crop
        border = max(0, max(down, across) - min(size) + 1) // 2
        pixels = np.pad(pixels, [(border, border), (border, border), (0, 0)])
        top, left = (size[0] - down) // 2 + border, (size[1] - across) // 2 + border
        pixels = pixels[top : top + down, left : left + across]
    return pixels


def of(kind: str, size: int | tuple[int, int] | dict[str, int], **more: Any) -> dict[str, Any]:
    """Changes for a kind of image processor; a tuple (0, side) is a short side."""
    edge = {"shortest_edge": size[1]} if isinstance(size, tuple) else size
    return {"image_processor_type": f"{kind}ImageProcessor", "size": edge, **more}


CROP_32 = {"crop_size": {"height": 32, "width": 32}}
OBLONG = {"crop_size": {"height": 24, "width": 40}}
EFFICIENTNET = {"image_processor_type": "EfficientNetImageProcessor"}
OFFSET = {"rescale_offset": True, "rescale_factor": 1 / 127.5}
EXTRACTOR = {"image_processor_type": None, "feature_extractor_type": "ViTFeatureExtractor"}


@pytest.mark.parametrize(
    ("changes", "size", "resample", "crop"),
    [
        ({}, (40, 56), Resampling.BILINEAR, None),
        ({"resample": 3}, (40, 56), Resampling.BICUBIC, None),
        ({"resample": 1, "size": 40}, (40, 40), Resampling.LANCZOS, None),
        ({"image_processor_type": "ViTImageProcessorFast"}, (40, 56), Resampling.BILINEAR, None),
        (EXTRACTOR, (40, 56), Resampling.BILINEAR, None),
        (of("CLIP", (0, 41), resample=3, **CROP_32), 41, Resampling.BICUBIC, 32),
        (of("Bit", (0, 36), resample=3, crop_size=32), 36, Resampling.BICUBIC, 32),
        (of("MobileNetV2", 36, **CROP_32), 36, Resampling.BILINEAR, 32),
        (of("ConvNext", (0, 35), crop_pct=0.875, resample=3), 40, Resampling.BICUBIC, 35),
        (of("ConvNext", (0, 32)), 36, Resampling.BILINEAR, 32),
        (of("ConvNext", (0, 384)), (384, 384), Resampling.BILINEAR, None),
        (of("DeiT", 43, **CROP_32), (43, 43), Resampling.BILINEAR, 32),
        ({"do_center_crop": True, "crop_size": 33}, (40, 56), Resampling.BILINEAR, 33),
        (of("DeiT", 43, **CROP_32, do_center_crop=NULL), (43, 43), Resampling.BILINEAR, None),
        (of("Beit", (0, 32), do_center_crop=True, crop_size=32), 32, Resampling.BILINEAR, 32),
        (of("Beit", 43, **CROP_32), (43, 43), Resampling.BILINEAR, None),
        (of("EfficientFormer", 43, **CROP_32), (43, 43), Resampling.BILINEAR, 32),
        (of("ViTHybrid", 41, **CROP_32), 41, Resampling.BILINEAR, 32),
        (of("Siglip", 41, **CROP_32, do_center_crop=True), 41, Resampling.BILINEAR, 32),
        (of("Segformer", 43, reduce_labels=False), (43, 43), Resampling.BILINEAR, None),
        (of("Segformer", 43, **CROP_32, do_center_crop=True), (43, 43), Resampling.BILINEAR, None),
        (of("Levit", (0, 35), resample=3, crop_size=35), 40, Resampling.BICUBIC, 35),
        (of("Levit", {"height": 43, "width": 44}, crop_size=35), (43, 44), Resampling.BILINEAR, 35),
        (of("Levit", 196, do_center_crop=True), 224, Resampling.BILINEAR, 224),
        (of("PoolFormer", (0, 36), crop_size=40), 40, Resampling.BILINEAR, 40),
        (of("PoolFormer", 36, crop_pct=0.8, **CROP_32), 45, Resampling.BILINEAR, 32),
        (of("PoolFormer", 36, crop_pct=NULL, **CROP_32), 36, Resampling.BILINEAR, 32),
        (of("MobileViT", (0, 41), do_flip_channel_order=NULL, **CROP_32), 41, Resampling.BILINEAR, 32),
        (of("MobileViT", (0, 41), do_flip_channel_order=False, **CROP_32), 41, Resampling.BILINEAR, 32),
        (of("EfficientNet", 43, resample=0, **CROP_32), (43, 43), Resampling.NEAREST, None),
        (of("EfficientNet", 43, do_center_crop=True, crop_size=289), (43, 43), Resampling.BILINEAR, 289),
        (of("CLIP", (0, 31), crop_size=48), 31, Resampling.BILINEAR, 48),
        (of("Bit", (0, 224), crop_size=None, resample=None), 224, Resampling.BICUBIC, 224),
        (of("CLIP", (0, 41), **OBLONG), 41, Resampling.BILINEAR, (24, 40)),
        (of("DeiT", 30, **OBLONG), (30, 30), Resampling.BILINEAR, (24, 40)),
        (of("DeiT", 43, crop_size=[24, 40]), (43, 43), Resampling.BILINEAR, (24, 40)),
        ({"size": [24, 40]}, (24, 40), Resampling.BILINEAR, None),
        (of("CLIP", 43, default_to_square=True, **CROP_32), (43, 43), Resampling.BILINEAR, 32),
        (of("DeiT", 43, default_to_square=False, **CROP_32), 43, Resampling.BILINEAR, 32),
        (
            {"image_processor_type": None, "resample": None, "size": 40},
            (40, 40),
            Resampling.BILINEAR,
            None,
        ),
    ],
)
@pytest.mark.parametrize("shape", [(320, 241), (97, 211)])
def test_pixels_are_those_of_the_image_processor(
    tmp_path: Path,
    changes: dict[str, Any],
    size: tuple[int, int] | int,
    resample: Resampling,
    crop: int | tuple[int, int] | None,
    shape: tuple[int, int],
) -> None:
    model = Model.read(images(tmp_path / "made", **changes))
    image = pictures.plate(*shape)
    expected = reference(image, size, resample, crop)
    actual = ImageDecoder(model.description.pipeline, 10**6).decode(pictures.encode(image, "PNG"))
    assert actual.shape == expected.shape == (*model.description.pipeline.output_size, 3)
    assert np.array_equal(actual, expected)


@pytest.mark.parametrize(
    ("before", "processor", "side"),
    [
        ({}, {"image_processor": {**PREPROCESSOR, "size": 24}}, 24),
        (None, {"image_processor": {**PREPROCESSOR, "size": 24}}, 24),
        ({"size": 32}, {"processor_class": "CLIPProcessor"}, 32),
        ({"size": 32}, {"image_processor": NULL}, 32),
    ],
)
def test_an_image_processor_in_processor_config_comes_first(
    tmp_path: Path, before: dict[str, Any] | None, processor: dict[str, Any], side: int
) -> None:
    files = {} if before is None else {"preprocessor_config": {**PREPROCESSOR, **before}}
    model = Model.read(export(tmp_path / "made", processor_config=processor, **files))
    assert model.description.pipeline.output_size == (side, side)


MOBILEVIT = {"image_processor_type": "MobileViTImageProcessor", "do_center_crop": False}


@pytest.mark.parametrize("changes", [MOBILEVIT, MOBILEVIT | {"do_normalize": NULL, "image_mean": NULL}])
def test_mobilevit_gets_blue_first_and_no_normalisation(tmp_path: Path, changes: dict[str, Any]) -> None:
    pipeline = Model.read(images(tmp_path / "made", **changes)).description.pipeline
    assert (pipeline.channels, pipeline.mean, pipeline.std) == ("BGR", (0, 0, 0), (1, 1, 1))
    image = pictures.plate(97, 211)
    pixels = ImageDecoder(pipeline, 10**6).decode(pictures.encode(image, "PNG"))
    assert np.array_equal(pixels[..., ::-1], reference(image, (40, 56), Resampling.BILINEAR, None))


def test_labels_are_those_of_id2label(tmp_path: Path) -> None:
    made = Model.read(images(tmp_path / "colours"))
    assert made.labels == ["red", "green", "blue"]
    described = made.description
    named = (described.name, described.version, described.task)
    assert named == ("colours", "1", "image-classification")
    assert Model.read(tmp_path / "colours", "1").description == described
    unnamed = images(tmp_path / "caf\xe9 v2")
    assert Model.read(unnamed, name="colours").description == described
    with pytest.raises(ConfigurationError, match=r"cannot be a model's name.*NAME=FOLDER"):
        Model.read(unnamed)
    assert Model.read(images(tmp_path / "two", {"id2label": None})).labels == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, lambda p: (p / 255 - MEAN) / STD),
        ({"rescale_factor": 1 / 127.5}, lambda p: (p / 127.5 - MEAN) / STD),
        ({"do_rescale": False}, lambda p: (p - MEAN) / STD),
        ({"do_normalize": False, "image_mean": None}, lambda p: p / 255),
        ({"image_mean": 0.5, "image_std": 0.5}, lambda p: p / 127.5 - 1),
        (MOBILEVIT, lambda p: p / 255),
        (EFFICIENTNET, lambda p: (p / 255 - MEAN) / STD / STD),
        (EFFICIENTNET | {"do_normalize": False}, lambda p: p / 255 / STD),
        (EFFICIENTNET | {"include_top": False} | OFFSET, lambda p: (p / 127.5 - 1 - MEAN) / STD),
        (EFFICIENTNET | {"do_rescale": False} | OFFSET, lambda p: (p - MEAN) / STD / STD),
        (OFFSET, lambda p: (p / 127.5 - MEAN) / STD),
    ],
)
@pytest.mark.parametrize("place", ["", "onnx"])
def test_the_network_gets_what_the_image_processor_makes(
    tmp_path: Path, changes: dict[str, Any], expected: Any, place: str
) -> None:
    folder = images(tmp_path / "made", **changes)
    graphs.saved(graphs.mean_colour(), folder / place)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 40, 56, 3), np.uint8)
    backend = OnnxBackend()
    backend.load(Model.read(folder), Settings(device="cpu"))
    actual = compute_logits(backend, pixels)
    assert actual == pytest.approx(expected(pixels.astype(float)).mean((1, 2)), rel=1e-4, abs=1e-4)


TIMM = {"architecture": "resnet18", "num_classes": 3, "label_names": ["red", "green", "blue"]}
HALF = {"mean": [0.5] * 3, "std": [0.5] * 3}


@pytest.mark.parametrize("wrapper", [{}, {"architectures": ["TimmWrapperForImageClassification"]}])
@pytest.mark.parametrize(
    ("pretrained", "resize", "crop", "resample"),
    [
        ({"tag": "a1_in1k"}, 256, 224, "bicubic"),
        ({"input_size": [3, 32, 32], "crop_pct": 0.95, **HALF}, 33, 32, "bicubic"),
        ({"input_size": [3, 32, 32], "crop_pct": 1.0, "interpolation": "bilinear"}, 32, 32, "bilinear"),
        ({"crop_mode": "squash", "crop_pct": 0.9}, (248, 248), 224, "bicubic"),
        ({"crop_mode": NULL}, 256, 224, "bicubic"),
    ],
)
def test_a_folder_of_timm_has_the_steps_of_its_evaluation(
    tmp_path: Path,
    wrapper: dict[str, Any],
    pretrained: dict[str, Any],
    resize: Any,
    crop: int,
    resample: str,
) -> None:
    described = Model.read(export(tmp_path / "made", {**TIMM, **wrapper, "pretrained_cfg": pretrained}))
    assert described.labels == TIMM["label_names"]
    pipeline = described.description.pipeline
    found = (pipeline.resize, pipeline.center_crop, pipeline.filter, pipeline.crop_rounding)
    assert found == (resize, crop, resample, "nearest")
    assert pipeline.exact
    assert pipeline.mean == ((0.5, 0.5, 0.5) if "std" in pretrained else (0.485, 0.456, 0.406))
    unnamed = {**TIMM, "label_names": None, "pretrained_cfg": pretrained}
    assert Model.read(export(tmp_path / "unnamed", unnamed)).labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_a_network_with_a_teacher_answers_with_the_mean_of_both_classifiers(tmp_path: Path) -> None:
    folder = images(tmp_path / "made", {"architectures": ["LevitForImageClassificationWithTeacher"]})
    made = graphs.mean_colour()
    made.graph.node.append(graphs.node("Neg", "logits", "cls_logits"))
    made.graph.output.insert(0, graphs.value("cls_logits", axes=["batch_size", 3]))
    graphs.saved(made, folder)
    backend = OnnxBackend()
    backend.load(Model.read(folder), Settings(device="cpu"))
    pixels = np.full((1, 40, 56, 3), 255, np.uint8)
    expected = (1 - np.array(MEAN)) / STD
    assert compute_logits(backend, pixels)[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("config", "probabilities"),
    [
        ({"problem_type": "multi_label_classification"}, [0.982, 0.269, 0.982]),
        ({"id2label": {"0": "nude"}}, [0.982]),
        ({}, [0.498, 0.003, 0.498]),
    ],
)
def test_labels_of_photos_exclude_each_other_or_not(
    tmp_path: Path, config: dict[str, Any], probabilities: list[float]
) -> None:
    """As in transformers' pipeline, a single label is like one of several that may fit."""
    folder = graphs.saved(graphs.mean_colour(), images(tmp_path / "made", config))
    logits = np.array([4, -1, 4], np.float32)[: len(probabilities)]
    top = ServedTask(folder).task.postprocess(Prepared([]), [[logits]], 3)
    by_index = [each["probability"] for each in sorted(top, key=itemgetter("index"))]
    assert by_index == pytest.approx(probabilities, abs=1e-3)


@pytest.mark.parametrize("end", ["Cast", "Identity"])
@pytest.mark.parametrize("activation", ["Softmax", "Sigmoid"])
def test_a_graph_that_returns_probabilities_is_refused(
    tmp_path: Path, activation: str, end: str
) -> None:
    folder = images(tmp_path / "made")
    made = graphs.mean_colour()
    made.graph.node.append(graphs.node(activation, "logits", "p"))
    made.graph.node.append(graphs.node(end, "p", "end", **({"to": 1} if end == "Cast" else {})))
    made.graph.output[0].name = "end"
    graphs.saved(made, folder)
    with pytest.raises(
        ConfigurationError, match=f"output end has probabilities.* remove the {activation}"
    ):
        OnnxBackend().load(Model.read(folder), Settings(device="cpu"))


def test_int8_is_taken_from_beside_the_graph(tmp_path: Path) -> None:
    folder = images(tmp_path / "made")
    graphs.saved(graphs.mean_colour(), folder / "onnx")
    shutil.copy(folder / "onnx" / "model.onnx", folder / "onnx" / "model_quantized.onnx")
    for chosen, expected in ((Settings(), "fp32"), (Settings(precision="int8"), "int8")):
        assert OnnxBackend().load(Model.read(folder), chosen).precision == expected
    (folder / "onnx" / "model.onnx").unlink()
    with pytest.raises(ConfigurationError, match=r"model_quantized\.onnx needs SERVING_PRECISION=int8"):
        OnnxBackend().load(Model.read(folder), Settings())


def test_what_to_do_without_a_graph(tmp_path: Path) -> None:
    model = Model.read(images(tmp_path / "made"))
    (model.folder / "model.safetensors").touch()
    with pytest.raises(ConfigurationError, match=r"no model\.onnx, .*optimum-cli`, or use --backend pt"):
        model.file("model.onnx")
    with pytest.raises(ConfigurationError, match="for images, export it with optimum-cli"):
        from_transformers(str(model.folder))
    graphs.saved(graphs.mean_colour(), model.folder / "onnx")
    (model.folder / "onnx" / "model.onnx").rename(model.folder / "onnx" / "model_q4.onnx")
    with pytest.raises(ConfigurationError, match=r"no model\.onnx, .* has onnx/model_q4\.onnx: rename"):
        model.file("model.onnx")


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (
            {"architectures": ["ViTForMasked"]},
            {},
            r"config\.json cannot be served: architectures is ViTForM",
        ),
        ({"architectures": None}, {}, "architectures names 0 networks"),
        ({"architectures": "x"}, {}, r"config\.json cannot be served: architectures: "),
        (
            {"pretrained_cfg": {"tag": "a1"}, "num_classes": 0},
            {},
            r"config\.json cannot be served: num_classes",
        ),
        ({"pretrained_cfg": {"crop_mode": "border"}, "num_classes": 2}, {}, "crop_mode"),
        ({"pretrained_cfg": {"interpolation": "random"}, "num_classes": 2}, {}, "filter"),
        ({"pretrained_cfg": {"input_size": [3, 64, 32]}, "num_classes": 2}, {}, "must be square"),
        ({"pretrained_cfg": {"input_size": [1, 32, 32]}, "num_classes": 2}, {}, "input_size"),
        (
            {"pretrained_cfg": {}, "num_classes": 2, "architectures": ["TimmWrapperModel"]},
            {},
            "without a",
        ),
        ({"auto_map": {"AutoModel": "mine.Mine"}}, {}, r"config\.json cannot be served: auto_map"),
        ({"id2label": {"1": "a", "2": "b"}}, {}, "id2label must have all numbers from 0 to 1"),
        ({"id2label": {"a": "a"}}, {}, r"id2label"),
        ({"num_channels": 1}, {"image_mean": [0.5], "image_std": [0.5]}, "num_channels is 1; only 3"),
        ({"problem_type": "regression"}, {}, "problem_type is regression, which"),
        ({"architectures": ["ViTModel"]}, {}, r"\['ViTModel'\], without a classifier .* ForImageC"),
        ({}, {"auto_map": {"x": "y"}}, r"preprocessor_config\.json cannot be served: auto_map"),
        ({"model_type": "swin"}, {"image_processor_type": None}, r"image_processor_type is missing"),
        ({}, {"image_processor_type": "PerceiverImageProcessor"}, "is PerceiverImageProcessor, whose"),
        ({}, {"feature_extractor_type": "Mine", "image_processor_type": None}, "extractor_type is Mine"),
        ({}, {"do_resize": False}, "do_resize is false, .* write true"),
        ({}, {"do_pad": True, "pad_size": {"height": 64, "width": 64}}, "do_pad"),
        ({}, {"resample": 6}, r'resample: Input should be .*; to call .* "task": "tensor"$'),
        ({}, of("Pvt", 40, resample=None), "resample is missing: write 2 for"),
        ({}, {"resample": NULL}, "resample is missing: write 2 for"),
        ({}, {"size": None}, "size is missing"),
        ({}, {"size": {"longest_edge": 3}}, "size has .'longest_edge'."),
        ({}, {"size": {"shortest_edge": 40}}, r"preprocessor_config\.json cannot be served: .*crop"),
        ({}, {"size": 10**6}, r"preprocessor_config\.json cannot be served: resize"),
        ({}, {"image_processor_type": "ConvNextImageProcessor"}, "size has no shortest_edge"),
        ({}, {"image_processor_type": "PoolFormerImageProcessor"}, "size has no shortest_edge"),
        ({}, of("ConvNext", 32, **CROP_32, do_center_crop=True), "do_center_crop is true"),
        ({}, {"do_center_crop": True}, "crop_size is missing"),
        ({}, {"do_center_crop": True, "crop_size": {"shortest_edge": 9}}, "crop_size has shortest_edge"),
        ({}, {"size": [40, 56, 3]}, "size"),
        ({}, of("ViT", 40, default_to_square=False), "center_crop"),
        ({}, of("CLIP", (0, 41), use_square_size=True, **CROP_32), "use_square_size"),
        ({}, {"image_mean": None}, "image_mean or image_std is missing"),
        ({}, {"image_std": [1, 0, 1]}, r"preprocessor_config\.json cannot be served: std"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, config: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        Model.read(images(tmp_path / "made", config, **changes))
    assert "\n" not in str(refused.value)


def test_files_that_are_missing_or_no_json(tmp_path: Path) -> None:
    folder = export(tmp_path / "made")
    with pytest.raises(
        ConfigurationError, match=r"config\.json .*: preprocessor_config\.json is missing"
    ):
        Model.read(folder)
    export(folder, processor_config={"image_processor": {**PREPROCESSOR, "size": {"longest_edge": 9}}})
    with pytest.raises(ConfigurationError, match=r"[/]processor_config\.json .*longest_edge"):
        Model.read(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"config\.json cannot be served: the content: Invalid"):
        Model.read(folder)


def test_what_is_no_export(tmp_path: Path) -> None:
    folder = graphs.saved(graphs.two_by_two(), export(tmp_path / "other", {"learning_rate": 1}))
    assert Model.read(folder).description.task == "tensor"
    with pytest.raises(ConfigurationError, match="no model in"):
        Model.read(images(tmp_path / "made"), "2")
    described = {"name": "own", "version": "1", "task": "tensor"}
    (folder / "model.json").write_text(json.dumps(described))
    assert Model.read(folder).description.name == "own"
