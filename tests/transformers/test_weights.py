"""What PyTorch reads of an export, and what it refuses at start."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from fastapi_pt.backend import TorchBackend
from fastapi_pt.huggingface import signature_of
from fastapi_pt.tokens import TokenNetwork
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.models.tensors import Array, Signature
from smallplates.settings import Settings
from tests.transformers import folders

WEIGHTS = "model.safetensors"
SETTINGS = Settings(device="cpu")


@pytest.fixture
def folder(kept: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of an export, to change."""
    return Path(shutil.copytree(kept(folders.text_classifier, "bert"), tmp_path / "made"))


def logits(folder: Path) -> Array:
    """What the backend answers to a batch of tokens."""
    model, backend = Model.read(folder), TorchBackend()
    backend.load(model, SETTINGS)
    return computed(backend, backend.signature(model))


def computed(network: TorchBackend | TokenNetwork, signature: Signature) -> Array:
    ids = np.arange(24).reshape(3, 8)
    mask = np.ones_like(ids)
    mask[1, 5:] = 0
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
    (output,) = network.infer(signature, [arrays[spec.name] for spec in signature.inputs])
    return output


def test_weights_in_several_files_and_in_half_precision(folder: Path) -> None:
    expected = logits(folder)
    network = AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    network.save_pretrained(folder, max_shard_size="50KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert logits(folder) == pytest.approx(expected, abs=1e-5)  # the faster form may be another
    for file in folder.glob("model*"):
        file.unlink()
    network.half().save_pretrained(folder)
    assert 1e-4 < np.abs(logits(folder) - expected).max() < 0.05


@pytest.mark.parametrize(
    ("network", "head"),
    [(folders.bart, "ForSequenceClassification"), (folders.longformer, "ForQuestionAnswering")],
)
def test_a_network_that_searches_for_the_end_of_texts(tmp_path: Path, network: Any, head: str) -> None:
    nli = folders.named(["contradiction", "entailment"])
    for part in network(tmp_path, head, **nli):
        part.save_pretrained(tmp_path)
    backend, model = TorchBackend(), Model.read(tmp_path, name="made")
    *_, checked = backend.compare_items(model, backend.signature(model))
    assert (checked.pads, checked.inputs[0].equal_count) == (True, 2)
    backend.load(model, SETTINGS)


def change(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Replaces a tensor, or removes it."""
    tensors = load_file(folder / WEIGHTS)
    tensors.pop(name)
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def configured(folder: Path, **changes: object) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | changes))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda folder: change(folder, "classifier.weight", None),
            r"model\.safetensors does not fit BertForSequenceClassification: 1 tensors are missing",
        ),
        (
            lambda folder: change(folder, "classifier.bias", torch.zeros(7)),
            r"model\.safetensors does not fit .*: 1 have other shapes, such as classifier\.bias",
        ),
        (lambda folder: configured(folder, hidden_size=32), "does not fit .* have other shapes"),
        (lambda folder: configured(folder, num_attention_heads=5), "cannot be loaded: The hidden size"),
        (
            lambda folder: (folder / WEIGHTS).write_bytes(b"\0" * 99),
            r"model\.safetensors cannot be loaded",
        ),
        (lambda folder: (folder / WEIGHTS).unlink(), r"has no model\.safetensors"),
        (pickled, r"pytorch_model\.bin is a pickle, which may run code"),
        (
            lambda folder: configured(folder, architectures=["NoneForSequenceClassification"]),
            r"config\.json cannot be served: transformers 4\.\d+\.\d+ has no network",
        ),
        (
            lambda folder: configured(
                folder, architectures=["CLIPModel"], model_type="clip", hidden_size=None
            ),
            r"config\.json cannot be served: CLIPModel has no hidden_size",
        ),
        (
            lambda folder: configured(
                folder, architectures=["T5EncoderModel"], model_type="t5", is_encoder_decoder=False
            ),
            "does not fit T5EncoderModel",
        ),
        (lambda folder: configured(folder, model_type="none"), r"config\.json cannot be served: .*none"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "a tokeniser that transformers"),
    ],
)
def test_what_is_refused(folder: Path, spoil: Callable[[Path], object], words: str) -> None:
    spoil(folder)
    backend = TorchBackend()
    with pytest.raises(ConfigurationError, match=words) as refused:
        backend.load(Model.read(folder), SETTINGS)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
def test_the_code_for_a_gpu_on_a_cpu(
    folder: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *_: None)
    model, settings = Model.read(folder), Settings.model_validate({"precision": precision})
    made = TokenNetwork.on_gpu(model, settings, None, torch.device("cpu"))
    assert made.precision == ("fp32" if precision == "fp32" else "fp16")
    actual = computed(made, signature_of(model))
    assert actual.dtype == np.float32
    assert actual == pytest.approx(logits(folder), abs=0.05)


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_a_precision_that_there_is_not(folder: Path, precision: str) -> None:
    settings = Settings.model_validate({"device": "cpu", "precision": precision})
    with pytest.raises(
        ConfigurationError, match=f"SERVING_PRECISION={precision} is not supported for texts"
    ):
        TorchBackend().load(Model.read(folder), settings)
