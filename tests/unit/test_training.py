"""`training/`: a model of one's own becomes a served folder, and an interrupted training goes on."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torchvision.models import get_model
from typer.testing import CliRunner

from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from serving.model import Model
from serving.scores import softmax
from serving.settings import Settings
from training import augment, evaluate, export, food11, train

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
        answers.append(backend.infer(batch))
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
    assert np.array_equal(again.infer(batch), answers[0])


def test_a_pickled_module_needs_an_explicit_flag(
    tmp_path: Path, weights: dict[str, torch.Tensor]
) -> None:
    network = get_model(ARCHITECTURE, weights=None, num_classes=3)
    network.load_state_dict(weights)
    file = tmp_path / "module.pt"
    torch.save(network, file)
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        export.read_weights(file, trust_pickle=False)
    assert export.read_weights(file, trust_pickle=True).keys() == weights.keys()


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
        return load_file(tmp_path / name / "ema.safetensors")

    whole = run("whole")
    save = train.save_checkpoint

    def save_and_stop(path: Path, epoch: int, *rest: object) -> None:
        save(path, epoch, *rest)  # type: ignore[arg-type]
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
