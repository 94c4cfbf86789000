"""`training/`: a model of one's own becomes a served folder, and an interrupted training goes on."""

import io
import json
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.fx.experimental.optimization import fuse
from torchvision.models import get_model
from typer.testing import CliRunner

from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from fastapi_pt.network import build, fill
from smallplates.cli import export
from smallplates.errors import ConfigurationError
from smallplates.export import folder, state_dict
from smallplates.models.folder import Model
from smallplates.models.scores import softmax
from smallplates.settings import Settings
from smallplates.tasks.image_classification import compute_logits
from training import augment, data, evaluate, food11, loop, mobilenet, photos
from training.calibration import fit_temperature

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
        expected = network.eval()(mobilenet.normalise(photos)).numpy() / 2
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
        ({"--weights": "list.pt"}, "contains no state dict"),
        ({"--weights": "archive.mar"}, "TorchServe"),
        ({"--weights": "other.pt"}, "tensors are missing"),
        ({"--labels": "two.txt"}, "2 labels"),
        ({"--labels": "empty.txt"}, "labels: "),
        ({"--architecture": "ResNet18"}, "similar names: resnet18"),
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
        folder.write_description(tmp_path, folder.description_of(food11.IMAGE, **fields))

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
    fill(network.body, dict(weights))  # without what torch.save keeps beside: safetensors has none
    assert torch.equal(network.body.state_dict()["classifier.1.weight"], weights["classifier.1.weight"])


def test_photos_are_read_with_class_and_dish(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        for name, size in (("02/food101-miso_soup-00001.jpg", (64, 64)), ("00/bakery-1.jpg", (96, 80))):
            buffer = io.BytesIO()
            Image.new("RGB", size, (200, 100, 0)).save(buffer, "JPEG")
            archive.writestr(name, buffer.getvalue())
    kind = data.read(64, tmp_path / "train.zip", tmp_path / "train.zip")
    assert kind.photos.shape == (4, 3, 64, 64)
    assert kind.photos[0, :, 5, 5].tolist() == pytest.approx([200, 100, 0], abs=3)
    assert (kind.classes.tolist(), kind.names) == ([2, 0] * 2, ["food101-miso_soup", "bakery"] * 2)
    assert [label for _, label in data.iterate(tmp_path / "train.zip")] == [2, 0]


def test_what_cameras_do_keeps_photos_photos() -> None:
    torch.manual_seed(0)
    photos = torch.rand(16, 3, 20, 20)
    cropped = augment.random_resized_crop(photos, 24, 0.3, max_area=1.3, rotation=0.3)
    assert cropped.shape == (16, 3, 24, 24)
    changed = augment.camera(cropped, 1.0)
    assert changed.shape == cropped.shape
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1
    assert not torch.equal(changed, cropped)


def test_a_mix_tells_whose_share_is_whose() -> None:
    torch.manual_seed(0)
    photos = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 16, 16)
    mixed, shares, others = augment.cutmix(photos)
    for index, (photo, share, other) in enumerate(zip(mixed, shares, others, strict=True)):
        if other != index:
            assert float((photo[0] == index).float().mean()) == pytest.approx(float(share))
            assert set(photo.unique().tolist()) <= {float(index), float(other)}
    mixed, shares, others = augment.mixup(photos)
    expected = torch.arange(8.0) * shares[:, 0] + others * (1 - shares[:, 0])
    torch.testing.assert_close(mixed, expected.view(8, 1, 1, 1).expand_as(mixed))
    assert float(shares.min()) >= 0.5


def kind_of(names: list[str], classes: list[int], side: int) -> data.Kind:
    """Returns random photos of these sources or dishes."""
    pixels = torch.randint(0, 256, (len(classes), 3, side, side), dtype=torch.uint8)
    return data.Kind(pixels, torch.tensor(classes), names)


def test_small_sources_are_drawn_more_often_and_classes_alike() -> None:
    small = kind_of(["food101-pho"] * 500, [6] * 500, 8)
    sharp = kind_of(["thai"] * 100 + ["sushi"] * 4 + ["thai"] * 9, [8] * 104 + [9] * 9, 8)
    course = photos.FIRST
    examples = photos.Examples(small, sharp, torch.zeros(113, 5), course)
    chances = examples.chances
    assert float(chances[:104].sum()) == pytest.approx(1)
    assert float(chances[104:].sum()) == pytest.approx(1)
    assert float(chances[100] / chances[0]) == pytest.approx(5)
    drawn = examples.draw(1)
    part = course.plan.batch_size - course.sharp
    assert drawn.shape == (500 // part, course.plan.batch_size)
    first, second = examples.split(drawn[0])
    assert len(set(first.tolist())) == len(first) == part
    assert int(second.max()) < 113
    assert torch.equal(drawn, examples.draw(1))


def test_what_is_not_known_of_a_photo_teaches_nothing() -> None:
    course = replace(photos.FIRST, sharp=2, plan=replace(photos.FIRST.plan, batch_size=6))
    torch.manual_seed(0)
    small = kind_of(["food101-pho", "food101-ramen", "food101-pho", "food101-pho"], [6, 6, 6, 6], 64)
    objects = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    sharp = kind_of(["thai", "food101-ramen"], [9, 6], 160)
    examples = photos.Examples(small, sharp, objects, course)
    assert examples.ends == (11, 13, 15)
    assert examples.targets[0][:, 11:].sum(1).tolist() == pytest.approx([1] * 4)
    assert examples.targets[1][0, 11:].tolist() == pytest.approx([0, 0, 0.9, 0.1])
    assert int(examples.targets[1][1, 11:13].argmax()) == 1

    class Constant(nn.Module):
        def __init__(self, outputs: torch.Tensor) -> None:
            super().__init__()
            self.outputs = nn.Parameter(outputs)

        def forward(self, photos: torch.Tensor) -> torch.Tensor:
            return self.outputs.expand(len(photos), -1)

    sure = torch.zeros(11)
    sure[9] = 20
    earlier = Constant(sure)
    examples.learn_from(earlier)
    assert float(examples.targets[0][0, 9]) == pytest.approx(0.5, abs=0.01)
    assert float(examples.targets[0][0, :11].sum()) == pytest.approx(1)
    model = Constant(torch.zeros(15))
    for _ in range(8):  # with all kinds of mixes
        loss = examples.loss(model, torch.tensor([0, 1, 2, 3, 0, 1]), 32, 1.0)
        dishes, seen = 5 / 6 * photos.DISHES * np.log(2), 2 / 6 * photos.OBJECTS * np.log(2)
        assert loss.item() == pytest.approx(np.log(11) + dishes + seen, rel=0.3)
    loss.backward()
    assert model.outputs.grad is not None
    assert model.outputs.grad.isfinite().all()


def test_batch_norm_is_rebuilt_such_that_the_function_stays(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folded = fuse(get_model("mobilenet_v2", weights=None).eval())
    for bias in (p for name, p in folded.named_parameters() if name.endswith("bias")):
        nn.init.normal_(bias, std=0.3)
    state = {name: tensor.numpy() for name, tensor in folded.state_dict().items()}
    np.savez(tmp_path / "weights.npz", **state)
    photos = torch.rand(64, 3, 32, 32)
    network = mobilenet.start(tmp_path / "weights.npz", 1000, 1000, photos)
    batch = mobilenet.normalise(photos)
    with torch.inference_mode():
        expected = folded(batch)
        torch.testing.assert_close(network(batch), expected, atol=1e-3, rtol=1e-3)
        # in training the same photos have the same statistics
        for layer in network.modules():
            layer.train(isinstance(layer, nn.BatchNorm2d))
        torch.testing.assert_close(network(batch), expected, atol=0.02, rtol=0.02)
        # what a training leaves is the start of the next one, with more outputs
        expected = network.eval()(batch)
        mobilenet.fold(network)
        folded_again = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
        save_file(folded_again, tmp_path / "model.safetensors")
        again = mobilenet.start(tmp_path / "model.safetensors", 1003, 1000, photos)
        torch.testing.assert_close(again(batch)[:, :1000], expected, atol=0.01, rtol=0.01)


class PowerCutError(Exception):
    """Stands for an interruption."""


def test_an_interrupted_training_ends_as_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = torch.rand(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    plan = loop.Plan(epochs=3, batch_size=8, peak=0.01, decay_epochs=1, fixed_epochs=1, ema_decay=0.9)

    def loss(network: nn.Module, chosen: torch.Tensor, epoch: float) -> torch.Tensor:
        noisy = inputs[chosen] + torch.rand(8, 1, 1, 1)
        result: torch.Tensor = (network(noisy) - epoch).square().mean()
        return result

    def run(name: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(2)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten())
        weights = loop.fit(
            model, plan.all_once(32), plan, tmp_path / name, loss, lambda _: {"figure": 0.5}
        )
        read: dict[str, torch.Tensor] = load_file(weights)
        return read

    whole = run("whole")
    save = loop.Training.save

    def save_and_stop(training: loop.Training, path: Path) -> None:
        save(training, path)
        if training.steps == 6:
            raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1)  # after each step
        patch.setattr(loop.Training, "save", save_and_stop)
        with pytest.raises(PowerCutError):
            run("cut")
    resumed = run("cut")
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    lines = (tmp_path / "cut" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    assert run("cut").keys() == whole.keys()  # nothing left to do


def test_a_training_ends_when_its_time_is_over(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    plan = loop.Plan(epochs=4, batch_size=8, peak=0.01, decay_epochs=3, seconds=0.4)
    places: list[float] = []

    def loss(network: nn.Module, chosen: torch.Tensor, epoch: float) -> torch.Tensor:
        places.append(epoch)
        time.sleep(0.01)
        result: torch.Tensor = network(torch.ones(8, 2) * chosen.view(-1, 1)).square().mean()
        return result

    began = time.monotonic()
    loop.fit(model, plan.all_once(16), plan, tmp_path, loss, lambda _: {"figure": -places[-1]})
    assert time.monotonic() - began < 5
    assert places == sorted(places)
    assert 0 == places[0] < places[-1] < 4
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"log.jsonl", "last.safetensors", "ema.safetensors"}


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
    assert fit_temperature(logits * 3, labels) == pytest.approx(3, rel=0.1)


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


def test_answers_that_a_photo_model_is_sure_of_are_right_in_four_of_five_cases() -> None:
    random = np.random.default_rng(0)
    first = random.uniform(0.5, 1, 2000)
    probabilities = np.stack([first, 1 - first], axis=1)
    labels = (random.uniform(size=2000) > first - 0.1).astype(np.int64)  # too sure by a tenth
    thresholds = evaluate.sure_from(probabilities, labels)
    figures = evaluate.summary(probabilities, labels, "photos", thresholds)
    assert 0.6 < figures["top1"] < 0.8
    assert figures["sure_top1"] == pytest.approx(0.8, abs=0.01)
    assert figures["sure"] == pytest.approx((first >= thresholds.probability).mean(), abs=1e-4)
    assert evaluate.sure_from(probabilities, 1 - labels).probability == 1
