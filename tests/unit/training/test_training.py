"""`training/`: a model of one's own becomes a served folder, and an interrupted training goes on."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision.models import get_model
from typer.testing import CliRunner

from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from fastapi_pt.network import build, fill
from serving.errors import ConfigurationError
from serving.model import Model
from serving.scores import softmax
from serving.settings import Settings
from serving.tasks.image_classification import compute_logits
from training import augment, evaluate, export, folder, food11, state_dict, train

pytestmark = [pytest.mark.slow, pytest.mark.torch]

ARCHITECTURE = "mobilenet_v3_small"


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """A state dict with three classes."""
    torch.manual_seed(5)
    state: dict[str, torch.Tensor] = get_model(ARCHITECTURE, weights=None, num_classes=3).state_dict()
    return state


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Three labels, one a line."""
    path = tmp_path / "labels.txt"
    path.write_text("cat\ndog\n\nelk\n")
    return path


def export_with(*arguments: str) -> str:
    """Runs the command line; returns what it said."""
    result = CliRunner().invoke(export.app, list(arguments))
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_state_dict_becomes_a_model_for_both_backends(
    tmp_path: Path, weights: dict[str, torch.Tensor], labels: Path
) -> None:
    file, out = tmp_path / "mine.pt", tmp_path / "mine"
    torch.save({"state_dict": {f"module.{k}": v for k, v in weights.items()}}, file)
    export_with(
        *("torchvision", "--weights", str(file), "--labels", str(labels), "--out", str(out)),
        *("--name", "mine", "--architecture", ARCHITECTURE, "--resize", "64x64"),
        *("--temperature", "2.0"),
    )
    model = Model.read(out)
    assert model.labels == ["cat", "dog", "elk"]
    batch = np.random.default_rng(1).integers(0, 256, (5, 64, 64, 3), np.uint8)
    answers = []
    for backend in (OnnxBackend(), TorchBackend()):
        backend.load(model, Settings(device="cpu"))
        answers.append(compute_logits(backend, batch))
        backend.close()
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-4)
    network = get_model(ARCHITECTURE, weights=None, num_classes=3)
    network.load_state_dict(weights)
    photos = torch.from_numpy(batch).permute(0, 3, 1, 2).float() / 255
    with torch.inference_mode():
        expected = network.eval()(train.normalise(photos)).numpy() / 2
    np.testing.assert_allclose(answers[0], expected, atol=0.02)

    renamed = tmp_path / "again"
    export_with(
        *("onnx", "--file", str(out / "1" / "model.onnx"), "--labels", str(labels)),
        *("--out", str(renamed), "--name", "again", "--version", "2", "--resize", "64x64"),
    )
    again = OnnxBackend()
    again.load(Model.read(renamed), Settings(device="cpu"))
    assert np.array_equal(compute_logits(again, batch), answers[0])


def test_a_pickled_module_needs_an_explicit_flag(
    tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    network = get_model(ARCHITECTURE, weights=None, num_classes=3)
    network.load_state_dict(weights)
    file = tmp_path / "module.pt"
    torch.save(network, file)
    with pytest.raises(ConfigurationError, match="--i-trust-this-pickle"):
        state_dict.read_weights(file, trust_pickle=False)
    assert state_dict.read_weights(file, trust_pickle=True).keys() == weights.keys()


@pytest.mark.parametrize("prefix", ["", "module.", "model._orig_mod."])
@pytest.mark.parametrize("key", [None, "state_dict", "model_state_dict", "model"])
def test_weights_are_found_where_trainers_leave_them(
    tmp_path: Path, weights: dict[str, torch.Tensor], prefix: str, key: str | None
) -> None:
    state = {prefix + name: tensor for name, tensor in weights.items()}
    torch.save({key: state, "epoch": 3} if key else state, tmp_path / "mine.pt")
    assert state_dict.read_weights(tmp_path / "mine.pt", trust_pickle=False).keys() == weights.keys()
    save_file(state, tmp_path / "mine.safetensors")
    read = state_dict.read_weights(tmp_path / "mine.safetensors", trust_pickle=False)
    assert read.keys() == weights.keys()


def test_labels_of_torchserve_and_of_other_systems(tmp_path: Path) -> None:
    path = tmp_path / "index_to_name.json"
    path.write_text('{"1": ["n2", "豆腐"], "0": "Käse"}', encoding="utf-8")
    assert folder.read_labels(path) == ["Käse", "豆腐"]
    path.write_text('{"2": "no", "0": "zero"}')
    with pytest.raises(ConfigurationError, match="index_to_name"):
        folder.read_labels(path)
    path = tmp_path / "labels.txt"
    path.write_bytes("\ufeffKäse\r\n豆腐\r\n".encode())
    assert folder.read_labels(path) == ["Käse", "豆腐"]
    path.write_bytes("Käse".encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"labels\.txt"):
        folder.read_labels(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"--weights": "nowhere.pt"}, "nowhere.pt"),
        ({"--weights": "folder"}, "folder"),
        ({"--weights": "text.pt"}, "not a state dict"),
        ({"--weights": "text.safetensors"}, "not a state dict"),
        ({"--weights": "list.pt"}, "holds no state dict"),
        ({"--weights": "archive.mar"}, "TorchServe"),
        ({"--weights": "other.pt"}, "tensors are missing"),
        ({"--labels": "two.txt"}, "2 labels"),
        ({"--labels": "empty.txt"}, "labels: "),
        ({"--architecture": "ResNet18"}, "near: resnet18"),
        ({"--architecture": "fasterrcnn_resnet50_fpn"}, "no classifier"),
        ({"--resize": "256"}, "center_crop"),
        ({"--resize": "99999x9"}, "4096"),
        ({"--name": "my model"}, "name: "),
        ({"--version": "v1"}, "version: "),
        ({"--out": "text.pt"}, "text.pt"),
    ],
)
def test_what_cannot_be_exported_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weights: dict[str, torch.Tensor],
    options: dict[str, str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("labels.txt").write_text("cat\ndog\nelk\n")
    Path("two.txt").write_text("cat\ndog\n")
    for name in ("empty.txt", "text.pt", "text.safetensors"):
        Path(name).write_text("hello" if name.startswith("text") else "")
    Path("folder").mkdir()
    torch.save(weights, "mine.pt")
    torch.save([1], "list.pt")
    torch.save({"a.b": torch.zeros(1), "c.d": torch.zeros(1)}, "other.pt")
    with zipfile.ZipFile("archive.mar", "w") as archive:
        archive.write("mine.pt")
    arguments = {"--weights": "mine.pt", "--labels": "labels.txt", "--architecture": ARCHITECTURE}
    arguments |= {"--name": "mine", "--out": "out", "--resize": "64x64", **options}
    result = CliRunner().invoke(
        export.app, ["torchvision", *[argument for pair in arguments.items() for argument in pair]]
    )
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    last = result.output.splitlines()[-1]
    assert last.startswith("nothing was exported: ")
    assert words in last
    assert not Path("out").exists()


def test_one_more_version_leaves_the_first_as_it_is(tmp_path: Path) -> None:
    def write(version: str, label: str) -> None:
        (tmp_path / version).mkdir(exist_ok=True)
        (tmp_path / version / "model.onnx").write_bytes(label.encode())
        fields = {"name": "mine", "version": version, "labels": [label]}
        folder.write_description(tmp_path, folder.described(food11.IMAGE, **fields))

    write("1", "cat")
    write("2", "dog")
    write("2", "elk")
    assert Model.read(tmp_path).labels == ["cat"]
    for version, label in (("1", "cat"), ("2", "elk")):
        model = Model.read(tmp_path, version)
        assert model.labels == [label]
        assert model.file("model.onnx").read_bytes() == label.encode()
        assert len(model.description.files) == 1


def test_a_network_whose_layers_have_versions_is_filled() -> None:
    weights = get_model("mnasnet0_5", weights=None, num_classes=3).state_dict()
    network = build("mnasnet0_5", 3, None)
    fill(network, dict(weights))  # without what torch.save keeps beside: safetensors has none
    assert torch.equal(network.body.state_dict()["classifier.1.weight"], weights["classifier.1.weight"])


def photos_zip(path: Path, count: int) -> None:
    """`count` photos of three classes, told apart by their colour."""
    random = np.random.default_rng(count)
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(count):
            pixels = random.integers(0, 90, (64, 64, 3), np.uint8)
            pixels[..., i % 3] += 120
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "JPEG")
            archive.writestr(f"{i % 3:02}/drawn-{i:05}.jpg", buffer.getvalue())


def test_what_cameras_do_keeps_photos_photos() -> None:
    torch.manual_seed(0)
    photos = torch.rand(16, 3, 20, 20)
    cropped = augment.random_resized_crop(photos, 24, 0.3, max_area=1.3, rotation=0.3)
    assert cropped.shape == (16, 3, 24, 24)
    changed = augment.camera(cropped, 1.0)
    assert changed.shape == cropped.shape
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1
    assert not torch.equal(changed, cropped)


def test_cutmix_weighs_targets_by_area() -> None:
    torch.manual_seed(0)
    photos = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 16, 16)
    targets = torch.eye(8)
    mixed, shares = augment.cutmix(photos, targets)
    assert torch.allclose(shares.sum(1), torch.ones(8))
    for row, share in zip(mixed, shares, strict=True):
        for index in range(8):
            assert float((row[0] == index).float().mean()) == pytest.approx(float(share[index]))


@pytest.mark.parametrize(
    ("options", "words"), [({"batch_size": 64}, "--batch-size"), ({"classes": 2}, "--classes")]
)
def test_a_training_that_its_photos_do_not_fit_is_refused(
    tmp_path: Path, options: dict[str, int], words: str
) -> None:
    photos_zip(tmp_path / "train.zip", 32)
    with pytest.raises(typer.BadParameter, match=words):
        train.main(tmp_path, tmp_path / "run", **{"classes": 3, "batch_size": 8, **options})  # type: ignore[arg-type]


class PowerCutError(Exception):
    """Stands for an interruption."""


def test_an_interrupted_training_ends_as_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos_zip(tmp_path / "train.zip", 32)
    photos_zip(tmp_path / "val.zip", 9)

    def run(name: str) -> dict[str, torch.Tensor]:
        train.main(
            tmp_path,
            tmp_path / name,
            architecture=ARCHITECTURE,
            classes=3,
            epochs=3,
            low_epochs=2,
            low_size=32,
            size=48,
            decay_epochs=1,
            ramp_epochs=2,
            variety=1.0,
            batch_size=8,
            device="cpu",
        )
        weights: dict[str, torch.Tensor] = load_file(tmp_path / name / "ema.safetensors")
        return weights

    whole = run("whole")
    save = train.save_checkpoint

    def save_and_stop(path: Path, epoch: int, *rest: Any) -> None:  # Any: as `save` has them
        save(path, epoch, *rest)
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(train, "save_checkpoint", save_and_stop)
        with pytest.raises(PowerCutError):
            run("cut")
    resumed = run("cut")
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    lines = (tmp_path / "cut" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_augmentation_keeps_shape_and_range() -> None:
    torch.manual_seed(2)
    photos = torch.rand(6, 3, 64, 64)
    targets = torch.eye(3).repeat(2, 1)
    changed = augment.random_resized_crop(photos, 40, 0.3)
    changed = augment.random_erasing(augment.colour_jitter(changed, 0.4), 1.0)
    changed, mixed = augment.mixup(changed, targets, 0.3)
    assert changed.shape == (6, 3, 40, 40)
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1
    assert torch.allclose(mixed.sum(1), torch.ones(6))


def test_a_crop_keeps_order_and_mirrors_about_half() -> None:
    torch.manual_seed(3)
    ramp = torch.linspace(0, 1, 64).expand(200, 3, 64, 64)
    crops = augment.random_resized_crop(ramp, 32, 0.3)
    assert torch.allclose(crops[..., :1, :].expand_as(crops), crops, atol=1e-5)
    steps = crops[:, 0, 0].diff(dim=1)
    rising, falling = (steps >= 0).all(dim=1), (steps <= 0).all(dim=1)
    assert bool((rising | falling).all())
    assert 60 < int(rising.sum()) < 140


def test_figures_of_the_evaluation() -> None:
    probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.3, 0.4, 0.3], [0.0, 1.0, 0.0]])
    labels = np.array([0, 1, 1, 1])
    assert evaluate.top_k_accuracy(probabilities, labels, 1) == 0.75
    assert evaluate.top_k_accuracy(probabilities, labels, 2) == 1
    assert evaluate.confusion(probabilities, labels).tolist() == [[1, 0, 0], [0, 2, 1], [0, 0, 0]]
    # bins: 0.7 twice, one right (off by 0.2); 0.4 once, right (0.6); 1.0 once, right (0)
    assert evaluate.calibration_error(probabilities, labels) == pytest.approx((2 * 0.2 + 0.6) / 4)


def test_temperature_undoes_overconfidence() -> None:
    torch.manual_seed(4)
    logits = torch.randn(4000, 5)
    labels = torch.distributions.Categorical(logits=logits).sample()
    assert food11.fit_temperature(logits * 3, labels) == pytest.approx(3, rel=0.1)


def test_sharp_photos_are_read_by_their_table(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"bytes")
    (tmp_path / "labels.csv").write_text("file,class_index,class\na.jpg,7,Rice\n")
    assert list(evaluate.sharp_photos(tmp_path)) == [(b"bytes", 7)]


def test_thresholds_separate_guesses_from_knowledge() -> None:
    random = np.random.default_rng(0)
    confidence = random.uniform(0, 8, (4000, 1))
    logits = np.concatenate([confidence, np.zeros((4000, 2))], axis=1).astype(np.float32)
    probabilities = softmax(logits)
    labels = np.array([random.choice(3, p=row) for row in probabilities])
    thresholds = evaluate.uncertain_below(probabilities, labels)
    assert 0.4 <= thresholds.probability <= 0.6
    assert 0 < thresholds.margin < 0.4


def test_batch_norm_forgets_what_it_saw_in_training() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten())
    network(torch.randn(8, 3, 4, 4) * 5 + 7)
    photos = torch.randint(0, 256, (300, 3, 16, 16), dtype=torch.uint8)
    train.renew_statistics(network, photos, 16)
    norm = network[0]
    assert isinstance(norm, nn.BatchNorm2d)
    seen = train.normalise(train.enlarged(photos.float() / 255, 16))
    torch.testing.assert_close(norm.running_mean, seen.mean((0, 2, 3)), atol=0.02, rtol=0)
    torch.testing.assert_close(norm.running_var, seen.var((0, 2, 3)), atol=0.02, rtol=0)
    assert not network.training
