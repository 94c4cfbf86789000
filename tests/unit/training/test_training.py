"""`training/`: a model of one's own becomes a served folder, and an interrupted training goes on."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision.models import get_model

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
from tests.command_line import run
from training import evaluate, food11, loop, mobilenet
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
    path = tmp_path / "labels.txt"
    path.write_text("cat\ndog\n\nelk\n")
    return path


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_state_dict_becomes_a_model_for_both_backends(
    tmp_path: Path, weights: dict[str, torch.Tensor], labels: Path
) -> None:
    file, out = tmp_path / "mine.pt", tmp_path / "mine"
    torch.save({"state_dict": {f"module.{k}": v for k, v in weights.items()}}, file)
    run(
        export.app,
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
    run(
        export.app,
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
    pairs = [argument for pair in arguments.items() for argument in pair]
    last = run(export.app, "torchvision", *pairs, code=1).splitlines()[-1]
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


def test_the_best_epoch_is_kept_also_after_an_interruption(tmp_path: Path) -> None:
    plan = loop.Plan(epochs=3, batch_size=1, peak=0.1, decay_epochs=1)
    best = tmp_path / loop.BEST

    def fit(*figures: float) -> Path:
        torch.manual_seed(2)
        left = list(figures)
        return loop.fit(
            nn.Linear(1, 1),
            plan.all_once(2),
            plan,
            tmp_path,
            lambda network, *_: network(torch.ones(1, 1)).square().sum(),
            lambda _: {"figure": left.pop(0)},
        )

    with pytest.raises(IndexError):
        fit(0.2, 0.6)
    kept = load_file(best)
    assert not all(torch.equal(tensor, kept[name]) for name, tensor in load_file(fit(0.4)).items())
    assert all(torch.equal(tensor, kept[name]) for name, tensor in load_file(best).items())


def test_temperature_undoes_overconfidence() -> None:
    torch.manual_seed(4)
    logits = torch.randn(4000, 5)
    labels = torch.distributions.Categorical(logits=logits).sample()
    assert fit_temperature(logits * 3, labels) == pytest.approx(3, rel=0.1)


def test_thresholds_separate_guesses_from_knowledge() -> None:
    random = np.random.default_rng(0)
    confidence = random.uniform(0, 8, (4000, 1))
    logits = np.concatenate([confidence, np.zeros((4000, 2))], axis=1).astype(np.float32)
    probabilities = softmax(logits)
    labels = np.array([random.choice(3, p=row) for row in probabilities])
    thresholds = evaluate.uncertain_below(probabilities, labels)
    assert 0.4 <= thresholds.probability <= 0.6
    assert 0 < thresholds.margin < 0.4
