"""The traced forms of a PyTorch network on a CPU, and what is not served."""

import json
import sys
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fastapi_pt import BACKEND
from fastapi_pt.backend import TorchBackend
from fastapi_pt.cpu import EAGER, FORM, LAYOUTS, PLAIN, optimise
from fastapi_pt.huggingface import ByName, signature_of
from smallplates.errors import ConfigurationError
from smallplates.models.comparison import probabilities
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature, TensorSpec
from smallplates.settings import Settings
from smallplates.supervision.planner import planner
from smallplates.system.cpus import bf16_objection
from smallplates.tasks.image_classification import compute_logits
from smallplates.worker import precision_check
from tests import exports, graphs, servers

pytestmark = [pytest.mark.slow, pytest.mark.torch]


def test_a_network_that_onednn_lacks_a_layer_for_is_served_in_the_plain_form(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten()).eval()
    photos = torch.rand(2, 3, 7, 7)
    served = optimise(network, [(torch.zeros(1, 3, 7, 7),), (photos,)], tmp_path)
    with torch.inference_mode():
        torch.testing.assert_close(served(photos), network(photos))
    assert json.loads((tmp_path / FORM).read_text())[0] == PLAIN


class Multiplied(nn.Module):
    """Network that computes with the batch's size in Python."""

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers * float(len(numbers))


def test_a_network_that_tracing_changes_is_served_as_it_is(tmp_path: Path) -> None:
    network, photos = Multiplied().eval(), torch.rand(3, 2)
    served = optimise(network, [(torch.zeros(1, 2),), (photos,)], tmp_path)
    assert torch.equal(served(photos), photos * 3)
    assert json.loads((tmp_path / FORM).read_text())[0] == EAGER
    assert optimise(network, [(photos[:1],), (photos,)], tmp_path) is network


def test_an_export_needs_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    model = Model.read(exports.saved(tmp_path / "sentiment", exports.word_piece(), {}))
    with pytest.raises(ConfigurationError, match=r"sentiment has no model\.safetensors"):
        TorchBackend().signature(model)
    (model.folder / "model.safetensors").touch()
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[transformers\]'"):
        TorchBackend().signature(model)


class Causal(nn.Module):
    """Network that refuses batches, as transformers' do if config.json has no padding token."""

    def __init__(self) -> None:
        super().__init__()
        tokens = exports.word_piece().get_vocab_size()
        self.config = SimpleNamespace(vocab_size=tokens, pad_token_id=None)
        self.embedding = nn.Embedding(tokens, 3)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, return_dict: bool
    ) -> dict[str, torch.Tensor]:
        if len(attention_mask) > 1:
            raise ValueError("Cannot handle batch sizes > 1 if no padding token is defined.")
        assert return_dict
        return {"logits": self.embedding(input_ids)[:, -1]}


@pytest.mark.parametrize(
    ("version", "stated", "names"),
    [
        ("4.57.6", {}, ["attention_mask", "input_ids", "token_type_ids"]),
        ("4.57.6", {"model_input_names": ["input_ids"]}, ["input_ids"]),
        ("5.1.0", {"model_input_names": ["input_ids"]}, ["input_ids"]),
    ],
)
def test_types_of_tokens_as_the_version_that_saved_the_folder_made_them(
    tmp_path: Path, version: str, stated: dict[str, list[str]], names: list[str]
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    folder = exports.saved(tmp_path, exports.word_piece(), {"transformers_version": version})
    (folder / "model.safetensors").touch()
    content = {"tokenizer_class": "PreTrainedTokenizerFast", **stated}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    assert sorted(spec.name for spec in signature_of(Model.read(folder)).inputs) == names


def test_a_network_that_refuses_batches_computes_texts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model.read(exports.saved(tmp_path / "qwen", exports.word_piece(), {}))
    causal = Causal()
    network = ByName(causal, ["input_ids", "attention_mask"], ["logits"])
    monkeypatch.setattr("fastapi_pt.backend.token_network", lambda _: network)
    monkeypatch.setattr("fastapi_pt.tokens.token_network", lambda _: network)
    declared = Signature(
        "tensor",
        tuple(TensorSpec(name, "int64", ("n",)) for name in network.inputs),
        (TensorSpec("logits", "float32", (3,)),),
        limits={"n": 64},
    )
    backend = TorchBackend()
    *_, signature = backend.compare_items(model, declared)
    assert (signature.pads, signature.batch_size, signature.limits) == (False, 1, {"n": 64})
    assert "computed alone" in signature.batch_note
    backend.load(model, Settings(device="cpu"))
    ids = np.array([[3, 7, 5]])
    (logits,) = backend.infer(signature, [ids, np.ones_like(ids)])
    assert np.allclose(logits, causal.embedding.weight.detach()[5])


def test_texts_that_padding_does_not_change_share_batches() -> None:
    model = Model.read(servers.ROOT / "models" / "sentiment")
    *_, found = TorchBackend().compare_items(model, TorchBackend().signature(model))
    assert (found.pads, found.limits, found.batch_note) == (True, {"sequence_length": 256}, "")


@pytest.mark.parametrize(
    ("listed", "others"),
    [
        ("model.safetensors", {"model_quantized.pt"}),
        ("model.safetensors.index.json", {"model-1.safetensors", "model-2.safetensors"}),
    ],
)
def test_an_export_is_measured_by_its_weights_and_its_configuration(
    tmp_path: Path, listed: str, others: set[str]
) -> None:
    folder = exports.saved(tmp_path, exports.word_piece(), {})
    for name in {listed, *others}:
        (folder / name).touch()
    found = set(TorchBackend().weights(Model.read(folder)))
    assert found == {folder / name for name in (listed, "config.json", *others)}


def test_a_graph_in_tensors_is_not_served(tmp_path: Path) -> None:
    model = Model.read(graphs.saved(graphs.two_by_two(), tmp_path / "sums"))
    with pytest.raises(ConfigurationError, match="cannot serve ONNX graphs; use fastapi_onnx"):
        planner(BACKEND, Settings())(model, Event())


@pytest.mark.parametrize("form", [PLAIN, LAYOUTS])
def test_numbers_that_are_not_finite_are_no_class(tmp_path: Path, form: str) -> None:
    settings = Settings(device="cpu", precision="fp32")
    (tmp_path / FORM).write_text(json.dumps([form, "as the test says"]))
    backend = TorchBackend()
    backend.load(Model.read(settings.model_dir), settings, tmp_path)
    batch = np.zeros((4, 3, 224, 224), np.float32)
    batch[1, 0, 0, 0] = np.inf
    batch[2, 0, 0, 0] = np.nan
    batch[3, :, ::2], batch[3, :, 1::2] = 3e38, -3e38
    assert np.isfinite(compute_logits(backend, batch)).all(axis=1).tolist() == [
        True,
        False,
        False,
        False,
    ]
    backend.close()


@pytest.mark.skipif(bool(bf16_objection()), reason="no instructions for bf16")
def test_bf16_computes_nearly_as_fp32_does() -> None:
    model = Model.read(Settings().model_dir)
    images = precision_check.sample_images(model.description.pipeline.output_size)
    answers = {}
    for precision in ("fp32", "bf16"):
        backend = TorchBackend()
        info = backend.load(model, Settings.model_validate({"device": "cpu", "precision": precision}))
        assert info.precision == precision
        answers[precision] = compute_logits(backend, images)
    # more than `auto` accepts, which therefore computes this model in int8
    assert 0 < probabilities(answers["fp32"], answers["bf16"]).worst < 0.05


def test_bf16_needs_a_processor_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastapi_pt.backend.bf16_objection", lambda: "no bf16 here")
    settings = Settings(device="cpu", precision="bf16")
    with pytest.raises(ConfigurationError, match="no bf16 here"):
        TorchBackend().load(Model.read(settings.model_dir), settings)
